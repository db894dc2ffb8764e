"""The batch that fits into memory, with a limit that is planned, and the run that keeps it."""

import json
import subprocess
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

pytestmark = pytest.mark.usefixtures('unformatted_configs')

MIB = 2**20
SHAPES = {2: (40, 2), 5: (2, 50), 8: (11, 11)}
OF_IMAGE = 33 * MIB  # bytes that an image takes in the planned model


@MODELS.register_module()
class HungryToy(Toy):
    """Keeps a large tensor of each image for the backward pass."""

    def forward(self, inputs, data_samples=None, mode='loss'):
        kept = inputs[0].new_ones(len(inputs), OF_IMAGE // 4) * self.linear.bias
        return {'loss': kept.square().mean()}


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
    """Let the memory be enough for some images, each of which takes about six such tensors."""
    free = images * 6 * OF_IMAGE / batch_size.SHARE
    monkeypatch.setattr(batch_size, 'free_memory', lambda: free)


@pytest.mark.parametrize(('images', 'expected'), [(100, 8), (5.5, 4), (2.8, 2)])
def test_the_largest_divisor_of_the_recipe_that_fits_is_chosen(monkeypatch, images, expected):
    limit(monkeypatch, images)
    cfg = config()
    notes = choose_batch_size(cfg)
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
    assert f'train_dataloader.batch_size={expected}: steps with the largest' in notes[0]
    assert f'An update has 8 images (batch {expected}, accumulative_counts {counts}' in notes[0]
    assert len(notes) == 1 + (counts > 1)


def test_values_in_iterations_are_multiplied_for_all_that_counts_them(monkeypatch):
    limit(monkeypatch, 2.8)  # batches of two, of which four are an update
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
    (note,) = choose_batch_size(cfg)[1:]
    assert cfg.train_cfg.val_interval == 4000
    assert cfg.param_scheduler[1].gamma == pytest.approx(0.81**0.25)
    assert cfg.train_cfg.dynamic_intervals == [(32, 8)]
    assert cfg.param_scheduler[0].periods == [16, 24]
    assert cfg.default_hooks.checkpoint.save_begin == 20
    assert cfg.default_hooks.ema == dict(type='EMAHook', begin_iter=12, interval=4, momentum=0.1)
    assert cfg.custom_hooks[0] == dict(
        type='EMAHook', ema_type='ExpMomentumEMA', interval=4, gamma=8000
    )
    assert 'default_hooks.ema.interval=4' in note and 'custom_hooks.0.gamma=8000' in note


def test_the_peak_of_the_program_that_starts_a_run_is_not_counted():
    code = 'from xcit_mm.train.batch_size import _peak; print(_peak(lambda: None))'
    parent = (
        'import subprocess, sys; large = bytearray(b"1") * 2**30; '
        f'subprocess.run([sys.executable, "-c", {code!r}], check=True)'
    )
    output = subprocess.run(
        [sys.executable, '-c', parent], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout
    assert int(output) < 2**30


def test_an_earlier_peak_that_cannot_be_forgotten_is_not_counted(monkeypatch, tmp_path):
    """As on macOS and Windows, and in containers without /proc/self/clear_refs."""
    monkeypatch.setattr(batch_size, 'FORGET_PEAK', tmp_path / 'missing/clear_refs')
    limit(monkeypatch, 2.8)
    torch.ones(20 * OF_IMAGE // 4)
    cfg = config()
    choose_batch_size(cfg)
    assert cfg.train_dataloader.batch_size == 2


def test_not_even_one_image_fits(monkeypatch):
    limit(monkeypatch, 0.1)
    with pytest.raises(UserError, match=r'batch_size=auto: not even one image can be trained'):
        choose_batch_size(config())


def test_on_a_gpu_smaller_batches_follow_one_that_is_out_of_memory(monkeypatch):
    """Planned steps in place of a GPU, which the next test needs."""
    shares, tried = [], []
    monkeypatch.setattr(torch.cuda, 'set_per_process_memory_fraction', shares.append)
    monkeypatch.setattr(torch.cuda, 'max_memory_reserved', lambda: 3 * MIB)

    def step(size: int) -> None:
        tried.append(size)
        if size > 2:
            raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')

    assert batch_size._first_on_gpu(step, [8, 4, 2, 1])[0] == 2
    assert tried == [8, 4, 2] and shares == [batch_size.SHARE, 1.0]
    with pytest.raises(UserError, match='within 90% of the memory of the GPU'):
        batch_size._first_on_gpu(step, [4])
    with pytest.raises(ZeroDivisionError):
        batch_size._first_on_gpu(lambda size: size / 0, [4])
    assert shares[-1] == 1.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')
def test_on_a_gpu_with_little_memory(monkeypatch):
    total = torch.cuda.get_device_properties(0).total_memory
    monkeypatch.setattr(batch_size, 'SHARE', 14 * OF_IMAGE / total)
    cfg = config()
    choose_batch_size(cfg)
    assert 1 <= cfg.train_dataloader.batch_size < 8


def test_a_recipe_is_never_exceeded_and_others_are_left_alone(monkeypatch):
    limit(monkeypatch, 100)
    cfg = config(base=1)
    choose_batch_size(cfg)
    assert cfg.train_dataloader.batch_size == 1
    cfg = config(**{'train_dataloader.batch_size': 3})
    before = cfg.to_dict()
    assert choose_batch_size(cfg) == [] and cfg.to_dict() == before


def test_without_a_readable_image_the_reason_is_named():
    broken = config(**{'train_dataloader.dataset.bad': tuple(range(10))})
    with pytest.raises(UserError, match=r'no training image can be read: ValueError: planted'):
        choose_batch_size(broken)


def test_two_processes_agree_on_the_smaller_batch(monkeypatch, tmp_path):
    def run(rank: int) -> None:
        limit(monkeypatch, 100 if rank else 5)  # for both processes of the machine
        cfg = config(base=8)
        choose_batch_size(cfg)
        assert cfg.train_dataloader.batch_size == 2
        assert cfg.optim_wrapper.accumulative_counts == 2

    in_processes(2, run, tmp_path)


def test_the_batch_of_a_run_that_resumes_is_in_the_config_that_it_keeps(tmp_path):
    def resumed(text: str | None) -> Config:
        cfg = config(work_dir=str(tmp_path), resume=True)
        object.__setattr__(cfg, '_filename', str(tmp_path / 'elsewhere/toy.py'))
        if text is not None:
            (tmp_path / 'toy.py').write_text(text)
        choose_batch_size(cfg)
        return cfg

    cfg = resumed('import os; os.nothing\ntrain_dataloader = dict(batch_size=2, dataset=dict())\n')
    assert (cfg.train_dataloader.batch_size, cfg.optim_wrapper.accumulative_counts) == (2, 4)
    for text in ('train_dataloader = dict()', 'train_dataloader = dict(batch_size=0)', '(', ''):
        with pytest.raises(UserError, match=r'toy\.py has no batch_size, where the run keeps it'):
            resumed(text)


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
        chosen = lambda step, sizes: (fits, 'planned')  # noqa: E731
        monkeypatch.setattr(batch_size, '_first_in_memory', chosen)
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
    kept = tmp_path / 'kept'
    arguments = [tmp_path / Path(SEGMENTOR).name, '--work-dir', kept, '--cfg-options']
    code, _, errors = call_tool(monkeypatch, capfd, 'train.py', *arguments, 'resume=False')
    assert code == 0, errors[-3000:]  # a run with the numbers from the start
    assert (kept / 'losses.jsonl').read_text() == (tmp_path / 'losses.jsonl').read_text()


def test_the_largest_samples_are_measured():
    """The one with the most pixels alone, and a batch with the tallest and the widest."""
    cfg = config()
    cfg.train_dataloader.dataset.type = 'SizedDataset'
    samples, _ = batch_size._largest_samples(cfg, 3)
    shapes = [tuple(sample['inputs'].shape) for sample in samples]
    assert shapes == [(11, 11), (40, 2), (2, 50), (11, 11)]
