"""The batch that fits into memory, with a limit that is planned, and the run that keeps it."""

import json
import sys
from pathlib import Path

import pytest
import torch
from helpers import ROOT
from helpers.in_process import call_tool
from helpers.processes import in_processes
from helpers.runs import SEGMENTOR
from helpers.toy import Toy, ToyDataset
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS

from xcit_mm import UserError
from xcit_mm.train import batch_size
from xcit_mm.train.batch_size import choose_batch_size

pytestmark = pytest.mark.skipif(
    sys.platform != 'linux', reason='the memory of a CPU is limited on Linux'
)

MIB = 2**20
SHAPES = {2: (40, 2), 5: (2, 50), 8: (11, 11)}
OF_IMAGE = 512 * MIB  # bytes that an image takes in the planned model


@MODELS.register_module()
class HungryToy(Toy):
    """Allocates memory for each image of a batch."""

    def forward(self, inputs, data_samples=None, mode='loss'):
        torch.empty(len(inputs) * OF_IMAGE, dtype=torch.uint8)
        return {'loss': self.linear.weight.square().mean() + self.linear.bias.square().mean()}


@DATASETS.register_module()
class SizedDataset(ToyDataset):
    """Images of several shapes, of which few are the largest."""

    def get_data_info(self, index: int) -> dict:
        height, width = SHAPES.get(index, (3, 3))
        return {'img_path': f'{index}.png', 'height': height, 'width': width}

    def __getitem__(self, index: int) -> dict:
        return {'inputs': torch.zeros(SHAPES.get(index, (3, 3)))}


def config(base: int = 8, **options) -> Config:
    cfg = Config(
        dict(
            model=dict(type='HungryToy'),
            train_dataloader=dict(
                batch_size='auto',
                num_workers=0,
                sampler=dict(type='DefaultSampler', shuffle=True),
                dataset=dict(type='ToyDataset'),
            ),
            train_cfg=dict(type='ResumableIterLoop', max_iters=10, val_interval=5),
            optim_wrapper=dict(optimizer=dict(type='AdamW', lr=0.1)),
            param_scheduler=[
                dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=3),
                dict(type='MultiStepLR', by_epoch=True, milestones=[8, 11]),
            ],
            default_hooks=dict(checkpoint=dict(interval=5, by_epoch=False)),
            auto_scale_lr=dict(enable=True, base_batch_size=base),
            default_scope='mmengine',
        )
    )
    cfg.merge_from_dict(options)
    return cfg


def limit(monkeypatch, images: float) -> None:
    """Let the memory be enough for some images."""
    free = images * OF_IMAGE / batch_size.SHARE
    monkeypatch.setattr(batch_size, 'free_memory', lambda: free)


@pytest.mark.parametrize(('images', 'expected'), [(100, 8), (5.5, 4), (2.5, 2)])
def test_the_largest_divisor_of_the_recipe_that_fits_is_chosen(monkeypatch, images, expected):
    limit(monkeypatch, images)
    cfg = config()
    (note,) = choose_batch_size(cfg)
    counts = 8 // expected
    assert cfg.train_dataloader.batch_size == expected
    assert cfg.optim_wrapper.get('accumulative_counts', 1) == counts
    # The run takes the updates of the recipe, with the schedule of the recipe.
    assert cfg.train_cfg == dict(
        type='ResumableIterLoop', max_iters=10 * counts, val_interval=5 * counts
    )
    assert cfg.param_scheduler[0].end == 3 * counts
    assert cfg.param_scheduler[1].milestones == [8, 11]
    assert cfg.default_hooks.checkpoint.interval == 5 * counts
    assert f'An update has 8 images (batch {expected}, accumulative_counts {counts}' in note
    torch.empty(8 * OF_IMAGE, dtype=torch.uint8)  # the limit is gone


def test_values_in_iterations_are_multiplied_for_all_that_counts_them(monkeypatch):
    limit(monkeypatch, 2.5)  # batches of two, of which four are an update
    cfg = config(
        **{
            'train_cfg.dynamic_intervals': [(8, 2)],
            'param_scheduler': [
                dict(type='CosineRestartLR', by_epoch=False, periods=[4, 6]),
                dict(type='ExponentialLR', by_epoch=False, gamma=0.81),
            ],
            'default_hooks.checkpoint.save_begin': 5,
            'default_hooks.ema': dict(type='EMAHook', begin_iter=3, momentum=0.1),
            'custom_hooks': [dict(type='EMAHook', ema_type='ExpMomentumEMA')],
        }
    )
    del cfg.train_cfg.val_interval
    choose_batch_size(cfg)
    assert cfg.train_cfg.val_interval == 4000
    assert cfg.param_scheduler[1].gamma == pytest.approx(0.81**0.25)
    assert cfg.train_cfg.dynamic_intervals == [(32, 8)]
    assert cfg.param_scheduler[0].periods == [16, 24]
    assert cfg.default_hooks.checkpoint.save_begin == 20
    assert cfg.default_hooks.ema == dict(type='EMAHook', begin_iter=12, interval=4, momentum=0.1)
    assert cfg.custom_hooks[0] == dict(
        type='EMAHook', ema_type='ExpMomentumEMA', interval=4, gamma=8000
    )


def test_not_even_one_image_fits(monkeypatch):
    limit(monkeypatch, 0.1)
    with pytest.raises(UserError, match=r'batch_size=auto: not even one image can be trained'):
        choose_batch_size(config())


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')
def test_on_a_gpu_with_little_memory(monkeypatch):
    total = torch.cuda.get_device_properties(0).total_memory
    monkeypatch.setattr(batch_size, 'SHARE', 5 * OF_IMAGE / total)
    cfg = config()
    choose_batch_size(cfg)
    assert 1 <= cfg.train_dataloader.batch_size < 8


def test_two_processes_agree_on_the_smaller_batch(monkeypatch, tmp_path):
    def run(rank: int) -> None:
        limit(monkeypatch, 100 if rank else 5)  # for both processes of the machine
        cfg = config(base=8)
        choose_batch_size(cfg)
        assert cfg.train_dataloader.batch_size == 2
        assert cfg.optim_wrapper.accumulative_counts == 2

    in_processes(2, run, tmp_path)


def test_a_training_keeps_its_batch_over_a_resume(monkeypatch, capfd, shapes_root, tmp_path):
    """On a machine that has less memory at first, and more when the run resumes."""
    options = [f'data_root={shapes_root}', 'train_dataloader.batch_size=auto']
    options += ['auto_scale_lr.base_batch_size=2', 'train_dataloader.num_workers=0']
    options += ['val_dataloader=None', 'val_cfg=None', 'val_evaluator=None']
    options += [
        'default_hooks.checkpoint.interval=1',
        'default_hooks.report=None',
        'default_hooks.errors=None',
    ]

    def train(fits: int, updates: int, *more: str) -> Config:
        monkeypatch.setattr(batch_size, '_largest_that_fits', lambda cfg, sizes: fits)
        limit = f'train_cfg.max_iters={updates}'
        arguments = ['--work-dir', tmp_path, *more, '--cfg-options', *options, limit]
        code, _, errors = call_tool(monkeypatch, capfd, 'train.py', ROOT / SEGMENTOR, *arguments)
        assert code == 0, errors[-3000:]
        return Config.fromfile(tmp_path / Path(SEGMENTOR).name)

    for cfg in (train(1, 1), train(2, 2, '--resume')):
        assert cfg.train_dataloader.batch_size == 1
        assert cfg.optim_wrapper.accumulative_counts == 2
    assert cfg.train_cfg.max_iters == 4  # two updates
    iterations = [json.loads(line)['iter'] for line in (tmp_path / 'losses.jsonl').open()]
    assert iterations == [1, 2, 3, 4]


def test_the_largest_samples_are_tried():
    """The one with the most pixels, then the one that makes the largest batch with it."""
    cfg = config()
    cfg.train_dataloader.dataset.type = 'SizedDataset'
    samples, _ = batch_size._largest_samples(cfg)
    assert [tuple(sample['inputs'].shape) for sample in samples[:2]] == [(11, 11), (2, 50)]
