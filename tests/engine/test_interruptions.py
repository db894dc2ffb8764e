"""Runs that are killed, receive a signal, or lose a process, as a user starts them."""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from helpers import ROOT, wait_until
from helpers.runs import DETECTOR, SEGMENTOR, Running, children_of, options, steps, weights

SMALL = """
arch = dict(_delete_=True, embed_dim=64, depth=4, num_heads=2, eta=1.0)
model = dict(
    backbone=dict(arch=arch, out_indices=(0, 1, 2, 3)),
    neck=dict(in_channels=[64] * 4),
)
custom_hooks = [dict(type='EMAHook')]
"""


def assert_same_weights(first: Path, second: Path) -> None:
    a, b = weights(first), weights(second)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def assert_same_runs(first: Path, second: Path, num_iters: int) -> None:
    """Compare bit by bit, and require a log of losses without a gap or a repetition."""
    assert_same_weights(*(folder / f'iter_{num_iters}.pth' for folder in (first, second)))
    logs = [(folder / 'losses.jsonl').read_text() for folder in (first, second)]
    assert logs[0] == logs[1]
    assert steps(first) == list(range(1, num_iters + 1))


@pytest.mark.parametrize(
    ('kills', 'iterations'), [(6, 18), pytest.param(20, 60, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ('config', 'processes'), [(DETECTOR, 1), (SEGMENTOR, 2)], ids=['detector', 'two processes']
)
def test_a_run_that_is_killed_repeatedly_ends_like_an_uninterrupted_one(
    shapes_root, tmp_path, config, processes, kills, iterations
):
    """With drop path, augmentation, a data worker and averaged weights."""
    own = tmp_path / 'own.py'
    own.write_text(f"_base_ = '{ROOT / config}'\n{SMALL}")
    arguments = (own, shapes_root, tmp_path, processes, kills, iterations)
    running = Running('tests/helpers/killed_runs.py', *arguments)
    returned, output, _ = running.end()
    logs = ''.join(path.read_text()[-3000:] for path in tmp_path.glob('*.log'))
    assert returned == 0, output[-3000:] + logs
    newest = [int(number) for number in re.findall(r'newest checkpoint (\d+)', output)]
    assert len(newest) == kills
    assert newest == sorted(newest)
    assert len(set(newest)) > kills / 3  # at so many iterations
    assert_same_runs(tmp_path / 'whole', tmp_path / 'killed', iterations)
    # The data workers of the killed processes end, too.
    session = ['pgrep', '--session', str(running.process.pid)]
    wait_until(lambda: subprocess.run(session, capture_output=True).returncode == 1, seconds=60)


EPOCHS = f"""_base_ = '{ROOT / SEGMENTOR}'
train_cfg = dict(_delete_=True, type='ResumableEpochLoop', max_epochs=2)
train_dataloader = dict(
    batch_size=2, sampler=dict(_delete_=True, type='DefaultSampler', shuffle=True)
)
default_hooks = dict(checkpoint=dict(by_epoch=True, interval=1), logger=dict(interval=1))
log_processor = dict(by_epoch=True, window_size=1)
"""


@pytest.fixture(scope='module')
def train_epochs(shapes_root, tmp_path_factory):
    """Start two epochs of twelve iterations, with a worker for the data."""
    config = tmp_path_factory.mktemp('config') / 'epochs.py'
    config.write_text(EPOCHS)

    def start(work_dir: Path, *more: str) -> Running:
        arguments = ['--work-dir', work_dir, *more, '--cfg-options', f'data_root={shapes_root}']
        return Running('tools/train.py', config, *arguments)

    return start


@pytest.fixture(scope='module')
def whole(train_epochs, tmp_path_factory) -> Path:
    """The work dir of an uninterrupted run."""
    work_dir = tmp_path_factory.mktemp('whole')
    returned, output, _ = train_epochs(work_dir).end()
    assert returned == 0, output[-3000:]
    return work_dir


@pytest.mark.parametrize(
    ('number', 'code'), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=['SIGTERM', 'Ctrl-C']
)
def test_a_run_stops_at_a_signal_and_loses_nothing(train_epochs, whole, tmp_path, number, code):
    """In the middle of an epoch; the signal goes to all processes of the group."""
    running = train_epochs(tmp_path)
    running.wait_for(tmp_path, 3)
    os.killpg(running.process.pid, number)
    returned, output, _ = running.end()
    assert returned == code, output[-3000:]
    stopped_after = steps(tmp_path)[-1]
    assert stopped_after < 12
    assert f'stopped by {number.name} after iteration {stopped_after}' in output
    assert 'Traceback' not in output
    assert [path.stem for path in tmp_path.glob('*.pth')] == [f'iter_{stopped_after}']

    returned, output, _ = train_epochs(tmp_path, '--resume').end()
    assert returned == 0, output[-3000:]
    assert_same_weights(whole / 'epoch_2.pth', tmp_path / 'epoch_2.pth')
    assert steps(tmp_path) == list(range(1, 25))


def distributed(shapes_root: Path, folder: Path, num_iters: int, **env: object) -> Running:
    arguments = ['--work-dir', folder, *options(shapes_root, num_iters)]
    arguments += ['default_hooks.checkpoint.interval=2', 'train_dataloader.batch_size=2']
    return Running('tools/dist_train.sh', SEGMENTOR, 2, *arguments, OMP_NUM_THREADS=1, **env)


def test_a_process_that_dies_ends_the_job_with_its_reason(shapes_root, tmp_path):
    running = distributed(shapes_root, tmp_path, 500)
    running.wait_for(tmp_path, 3)
    os.kill(children_of(running.process.pid)[1], signal.SIGKILL)
    returned, output, seconds = running.end()
    assert returned != 0
    assert seconds < 60
    cause = output[output.index('Root Cause') :]
    assert 'rank      : 1' in cause
    assert 'SIGKILL' in cause


def test_a_restarted_job_resumes_from_the_last_checkpoint(shapes_root, tmp_path):
    num_iters = 14
    running = distributed(shapes_root, tmp_path / 'cut', num_iters, MAX_RESTARTS=1)
    running.wait_for(tmp_path / 'cut', 3)
    os.kill(children_of(running.process.pid)[1], signal.SIGKILL)
    returned, output, _ = running.end()
    assert returned == 0, output[-5000:]
    assert 'This process was restarted: it resumes from the newest checkpoint.' in output
    assert 'The training is finished.' in output
    returned, output, _ = distributed(shapes_root, tmp_path / 'whole', num_iters).end()
    assert returned == 0, output[-5000:]
    assert_same_runs(tmp_path / 'whole', tmp_path / 'cut', num_iters)


def test_all_processes_stop_after_the_step_in_which_one_receives_a_signal(shapes_root, tmp_path):
    running = distributed(shapes_root, tmp_path, 500)
    running.wait_for(tmp_path, 3)
    os.kill(children_of(running.process.pid)[1], signal.SIGTERM)
    _, output, seconds = running.end()
    assert seconds < 60
    (stopped_after,) = set(re.findall(r'stopped by SIGTERM after iteration (\d+)', output))
    assert output.count('stopped by SIGTERM') >= 2
    assert (tmp_path / f'iter_{stopped_after}.pth').is_file()


def test_unequal_shares_and_images_without_objects_do_not_hang_the_processes(shapes_root, tmp_path):
    """Seven images: four with objects for the first process, three without for the second."""
    root = Path(shutil.copytree(shapes_root, tmp_path / 'shapes'))
    ann_file = root / 'coco/annotations/instances_train2017.json'
    content = json.loads(ann_file.read_text())
    content['images'] = sorted(content['images'], key=lambda image: image['id'])[:7]
    with_objects = {image['id'] for image in content['images'][::2]}
    content['annotations'] = [a for a in content['annotations'] if a['image_id'] in with_objects]
    ann_file.write_text(json.dumps(content))
    own = tmp_path / 'own.py'
    own.write_text(
        f"_base_ = '{ROOT / DETECTOR}'\n"
        "train_cfg = dict(_delete_=True, type='ResumableEpochLoop', max_epochs=2)\n"
        "sampler = dict(_delete_=True, type='DefaultSampler', shuffle=False, round_up=False)\n"
        'train_dataloader = dict(batch_size=1, sampler=sampler)\n'
    )
    arguments = ['--work-dir', tmp_path / 'work', '--cfg-options', f'data_root={root}']
    arguments += ['default_hooks.logger.interval=1']
    running = Running('tools/dist_train.sh', own, 2, *arguments, OMP_NUM_THREADS=1)
    returned, output, _ = running.end()
    assert returned == 0, output[-5000:]
    assert steps(tmp_path / 'work') == list(range(1, 9))  # four an epoch, for both
