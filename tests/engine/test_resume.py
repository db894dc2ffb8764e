"""What a resumed run takes from its checkpoint, and what it does if the checkpoint is bad."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import wait_until
from helpers.heads import HEADS, narrow
from helpers.resumed_runs import DRAWS, assert_same_weights, hooks, interrupted, resumed
from helpers.runs import steps
from helpers.toy import ToyDataset, toy_runner
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS, MODELS, DefaultScope

from xcit_mm import UserError, environment
from xcit_mm.engine.build_model import without_other_heads
from xcit_mm.engine.checkpoints.newest import newest_checkpoint
from xcit_mm.engine.hooks import interrupt
from xcit_mm.errors import Interrupted
from xcit_mm.run_files import has_checkpoints, require_checkpoints


@pytest.mark.parametrize('kwargs', [dict(), dict(by_epoch=True)], ids=['iterations', 'epochs'])
@pytest.mark.parametrize('interval', [1, 2])
@pytest.mark.parametrize('after', [1, 3, 5, 7])
def test_a_resumed_run_ends_like_an_uninterrupted_one(tmp_path, kwargs, interval, after):
    """In the middle of an epoch of five iterations, at its end, before the first checkpoint."""
    kwargs = kwargs | {
        'default_hooks.checkpoint.interval': interval,
        'param_scheduler': [dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=6)],
    }
    DRAWS.clear()
    whole = toy_runner(tmp_path / 'whole', custom_hooks=hooks(), **kwargs)
    whole.train()
    expected = DRAWS.copy()
    DRAWS.clear()
    interrupted(tmp_path / 'cut', after, **kwargs)
    if after < interval:
        assert not has_checkpoints(str(tmp_path / 'cut'))
        return
    assert_same_weights(whole, resumed(tmp_path / 'cut', **kwargs))
    assert sorted(set(DRAWS)) == expected
    logs = [(tmp_path / name / 'losses.jsonl').read_text() for name in ('whole', 'cut')]
    assert logs[0] == logs[1]
    assert steps(tmp_path / 'whole') == list(range(1, len(expected) + 1))


@pytest.mark.parametrize(
    'name',
    [pytest.param(n, marks=[] if 'rtmdet' in n else pytest.mark.slow) for n in HEADS],
)
def test_a_resumed_detector_ends_like_an_uninterrupted_one(tmp_path, shapes_root, name):
    """With drop path, dropout, sampled regions and noisy queries, on flipped images."""
    environment.require_framework('mmdet')
    pipeline = [
        dict(type='LoadImage'),
        dict(type='LoadAnnotations', with_bbox=True, with_mask='mask' in name),
        dict(type='Resize', scale=(64, 64)),
        dict(type='RandomFlip', prob=0.5),
        dict(type='PackDetInputs'),
    ]
    dataset = dict(
        type='CheckedCocoDataset',
        data_root=str(shapes_root / 'coco'),
        ann_file='annotations/instances_train2017.json',
        data_prefix=dict(img='train2017/'),
        metainfo=dict(classes=('circle', 'square', 'triangle')),
        pipeline=pipeline,
    )
    kwargs = {
        'model': narrow(name),
        'train_dataloader.dataset': dataset,
        'optim_wrapper.optimizer.lr': 1e-4,
        'default_hooks.checkpoint.interval': 2,
        'default_scope': 'mmdet',
        'steps': 3,
    }
    whole = toy_runner(tmp_path / 'whole', custom_hooks=hooks(), **kwargs)
    whole.train()
    trained = whole.optim_wrapper.optimizer.state  # of the parameters that had a gradient
    assert [name for name, p in whole.model.named_parameters() if p not in trained] == []
    interrupted(tmp_path / 'cut', 2, **kwargs)
    assert_same_weights(whole, resumed(tmp_path / 'cut', **kwargs))


def test_a_dino_is_fine_tuned_for_other_classes():
    """Its queries with noise embed the classes."""
    environment.require_framework('mmdet')
    states = []
    for num_classes in (80, 3):
        model = narrow('dino_xcit_s12_16_12e')
        model['bbox_head']['num_classes'] = num_classes
        with DefaultScope.overwrite_default_scope('mmdet'):
            states.append(MODELS.build(model).state_dict())
    kept, initial = without_other_heads(*states)
    assert kept.keys() | initial == states[1].keys()
    assert 'dn_query_generator.label_embedding.weight' in initial
    assert {name.split('.')[0] for name in initial} == {'bbox_head', 'dn_query_generator'}


@DATASETS.register_module()
class StuckDataset(ToyDataset):
    """Loads six samples, then sends a signal to the training that waits for the next."""

    def __init__(self, folder: str, number: int) -> None:
        super().__init__()
        self.folder, self.number = Path(folder), number
        self.num_loaded = 0

    def __getitem__(self, index: int) -> dict:
        if self.num_loaded == 6:
            wait_until(lambda: len(steps(self.folder)) == 3)
            time.sleep(0.5)  # most likely until the end of the step; otherwise it stops there
            os.kill(os.getppid(), self.number)
            (self.folder / 'stuck').touch()
            time.sleep(10**6)
        self.num_loaded += 1
        return super().__getitem__(index)


def stuck_runner(folder: Path, number: int, **kwargs):
    kwargs['train_dataloader.dataset'] = dict(
        type='StuckDataset', folder=str(folder), number=number
    )
    return toy_runner(folder, custom_hooks=hooks(dict(type='InterruptHook')), **kwargs)


@pytest.mark.parametrize(
    ('kwargs', 'number'),
    [(dict(), signal.SIGTERM), (dict(by_epoch=True), signal.SIGINT)],
    ids=['SIGTERM', 'Ctrl-C in an epoch'],
)
def test_a_run_that_waits_for_data_stops_at_a_signal_and_loses_nothing(tmp_path, kwargs, number):
    kwargs = kwargs | {'default_hooks.checkpoint.interval': 100}
    whole = toy_runner(tmp_path / 'whole', custom_hooks=hooks(), **kwargs)
    whole.train()
    cut = tmp_path / 'cut'
    runner = stuck_runner(cut, number, **kwargs, **{'train_dataloader.num_workers': 1})
    with pytest.raises(Interrupted, match='after iteration 3'):
        runner.train()
    assert [path.name for path in cut.glob('*.pth')] == ['iter_3.pth']
    assert_same_weights(whole, resumed(cut, **kwargs))


@HOOKS.register_module()
class SignalInValidationHook(Hook):
    priority = 'LOWEST'

    def before_train(self, runner) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for hook in runner.hooks:
            if isinstance(hook, interrupt.InterruptHook):
                hook.after_val_iter(runner)


def test_the_step_that_a_run_resumes_from_counts_as_saved_at_a_signal(tmp_path):
    interrupted(tmp_path, 3)
    interrupts = hooks(dict(type='InterruptHook'), dict(type='SignalInValidationHook'))
    path, _ = newest_checkpoint(str(tmp_path))
    runner = toy_runner(tmp_path, resume=True, load_from=str(path), custom_hooks=interrupts)
    with pytest.raises(Interrupted, match='in a validation, after the checkpoint of its step'):
        runner.train()


def test_a_second_signal_ends_a_run_at_once(tmp_path):
    """The main process itself is stuck, so that no step ends."""
    output = tmp_path / 'output'
    output.touch()
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)  # a fork would wait for OpenMP's threads, which it lacks
            sys.stderr = output.open('w')
            stuck_runner(tmp_path, 0).train()
        finally:
            os._exit(1)
    wait_until((tmp_path / 'stuck').exists)
    os.kill(child, signal.SIGTERM)
    wait_until(lambda: interrupt.STOPPING in output.read_bytes())
    time.sleep(1.1)  # within a second it would count as the same request
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


@pytest.mark.parametrize(
    ('name', 'value', 'layout'),
    [
        ('batch_size', 5, {'images a step': 5, 'steps an epoch': 2}),
        ('num_batch_per_epoch', 2, {'images a step': 2, 'steps an epoch': 2}),
    ],
)
def test_with_another_number_of_steps_an_epoch_the_interrupted_epoch_starts_again(
    tmp_path, name, value, layout
):
    """Five iterations an epoch before, two after: the run was in the second epoch."""
    interrupted(tmp_path, 7, by_epoch=True)
    DRAWS.clear()
    runner = resumed(tmp_path, by_epoch=True, **{f'train_dataloader.{name}': value})
    assert [step for step, *_ in DRAWS] == [2, 3]
    assert runner.iter == 4
    logs = ''.join(path.read_text() for path in tmp_path.glob('*/*.log'))
    assert f'There are {layout}, before the interruption' in logs
    assert steps(tmp_path) == sorted(set(steps(tmp_path)))


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def fill_with_nan(path: Path) -> None:
    checkpoint = torch.load(path, weights_only=False)
    checkpoint['state_dict']['linear.weight'][:] = torch.nan
    torch.save(checkpoint, path)


def test_bad_checkpoints_are_named_and_an_older_one_is_resumed(tmp_path):
    interrupted(tmp_path, 4)
    cut_off(tmp_path / 'iter_4.pth')
    fill_with_nan(tmp_path / 'iter_3.pth')
    path, (cut, with_nan) = newest_checkpoint(str(tmp_path))
    assert path.name == 'iter_2.pth'
    assert 'iter_4.pth cannot be read: it is cut off' in cut
    assert 'infinite numbers or NaN in linear.weight' in with_nan
    assert cut.endswith('; iter_2.pth is used instead')
    resumed(tmp_path)
    for path in tmp_path.glob('iter_*.pth'):
        path.write_bytes(b'')
    with pytest.raises(UserError, match=r'no checkpoint in .* can be resumed: .*iter_2.*iter_1'):
        newest_checkpoint(str(tmp_path))
    with pytest.raises(UserError, match='holds no checkpoint to resume from'):
        require_checkpoints(str(tmp_path / 'other'))


def test_a_copy_is_resumed_from_its_own_newest_checkpoint(tmp_path):
    """Whatever the times of its files are, and although mmengine notes the original's path."""
    interrupted(tmp_path / 'a', 4)
    (tmp_path / 'b').mkdir()
    for name in ('iter_3.pth', 'iter_2.pth', 'last_checkpoint'):
        (tmp_path / 'b' / name).write_bytes((tmp_path / 'a' / name).read_bytes())
    (tmp_path / 'b/iter_9.pth').mkdir()
    path, notes = newest_checkpoint(str(tmp_path / 'b'))
    assert path == tmp_path / 'b/iter_3.pth'
    assert notes == []


def test_a_torn_line_is_written_again_and_the_config_in_a_checkpoint_is_not_run(tmp_path):
    """mmengine reads ``meta.config`` as a Python file."""
    interrupted(tmp_path, 2)
    with (tmp_path / 'losses.jsonl').open('a') as file:
        file.write('{"iter": 3, "lo')
    checkpoint = torch.load(tmp_path / 'iter_2.pth', weights_only=False)
    checkpoint['meta']['config'] = f'import os\nos.mkdir({str(tmp_path / "trace")!r})'
    torch.save(checkpoint, tmp_path / 'iter_2.pth')
    resumed(tmp_path)
    lines = [json.loads(line)['iter'] for line in (tmp_path / 'losses.jsonl').open()]
    assert lines == list(range(1, 9))
    assert not (tmp_path / 'trace').exists()
