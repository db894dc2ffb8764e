"""Runs that are killed, receive a signal, or lose a process, as a user starts them."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from helpers import ROOT, wait_until_session_ends
from helpers.resumed_runs import assert_same_run, names
from helpers.runs import SEGMENTOR, Running, options, run_script, steps

SMALL = """
_base_ = {base!r}
arch = dict(_delete_=True, embed_dim=64, depth=4, num_heads=2, eta=1.0)
model = dict(backbone=dict(arch=arch, out_indices=(0, 1, 2, 3)), neck=dict(in_channels=[64] * 4))
custom_hooks = [dict(type='EMAHook')]
"""


@pytest.mark.slow
def test_a_run_that_is_killed_repeatedly_ends_like_an_uninterrupted_one(shapes_root, tmp_path):
    """Two processes, with drop path, augmentation, data workers and averaged weights."""
    kills, iterations = 4, 14  # two epochs and a half
    own = tmp_path / 'own.py'
    own.write_text(SMALL.format(base=str(ROOT / SEGMENTOR)))
    arguments = (own, shapes_root, tmp_path, 2, kills, iterations)
    running = Running('tests/helpers/killed_runs.py', *arguments)
    returned, output = running.end()
    logs = ''.join(path.read_text()[-3000:] for path in tmp_path.glob('*.log'))
    assert returned == 0, output[-3000:] + logs
    newest = [int(number) for number in re.findall(r'newest checkpoint (\d+)', output)]
    assert len(newest) == kills
    assert newest == sorted(newest)
    assert len(set(newest)) > kills / 3  # at so many iterations
    whole, killed = tmp_path / 'whole', tmp_path / 'killed'
    assert_same_run(whole, killed, iterations)
    # The data workers of the killed processes end, too.
    wait_until_session_ends(running.process.pid)


def test_a_run_stops_at_a_signal_with_a_checkpoint_and_is_resumed(shapes_root, tmp_path):
    """The signal goes to all processes of the group, as from a terminal."""

    def start(num_iters: int, *more: str) -> Running:
        arguments = ['--work-dir', tmp_path, *more, *options(shapes_root, num_iters)]
        return Running('tools/train.py', SEGMENTOR, *arguments, 'train_dataloader.num_workers=1')

    running = start(500)
    running.wait_for(tmp_path, 3)
    os.killpg(running.process.pid, signal.SIGINT)
    returned, output = running.end()
    assert returned == 130, output[-3000:]
    last = steps(tmp_path)[-1]
    assert f'stopped by SIGINT after iteration {last}' in output
    assert 'Traceback' not in output
    assert names(tmp_path) == [f'iter_{last}.pth']
    returned, output = start(last + 2, '--resume').end()
    assert returned == 0, output[-3000:]
    assert steps(tmp_path) == list(range(1, last + 3))


SIGNALS = """
import os
import signal
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class SignalHook(Hook):
    def before_train_iter(self, runner, **_):
        place = os.environ['TORCHELASTIC_RESTART_COUNT'], runner.iter
        number = {('0', 4): signal.SIGKILL, ('1', 6): signal.SIGTERM}.get(place)
        if get_rank() == 1 and number:
            os.kill(os.getpid(), number)
"""


@pytest.mark.slow
def test_a_job_is_restarted_after_a_death_and_all_its_processes_stop_at_a_signal(
    shapes_root, tmp_path
):
    """The second process is killed in iteration 5, and receives a signal in iteration 7."""
    (tmp_path / 'signal_hook.py').write_text(SIGNALS)
    (tmp_path / 'own.py').write_text(
        f"_base_ = '{ROOT / SEGMENTOR}'\n"
        "custom_imports = dict(imports=['xcit_mm', 'signal_hook'])\n"
        "custom_hooks = [dict(type='SignalHook')]\n"
    )
    arguments = ['--work-dir', tmp_path / 'work', *options(shapes_root, 8)]
    arguments += ['default_hooks.checkpoint.interval=2', 'train_dataloader.batch_size=2']
    env = dict(PYTHONPATH=tmp_path, OMP_NUM_THREADS=1, MAX_RESTARTS=1)
    running = Running('tools/dist_train.sh', tmp_path / 'own.py', 2, *arguments, **env)
    returned, output = running.end()
    assert returned != 0
    assert 'This process was restarted: it resumes from the newest checkpoint.' in output
    assert output.count('stopped by SIGTERM after iteration 7') >= 2
    assert (tmp_path / 'work/iter_7.pth').is_file()
    assert steps(tmp_path / 'work') == list(range(1, 8))


RETINANET = """
_base_ = {bases}
model = dict(
    backbone=dict(arch='n12'),
    neck=dict(in_channels=[128] * 4, out_channels=64),
    bbox_head=dict(in_channels=64, feat_channels=64, stacked_convs=1, num_classes=3),
)
val_evaluator = test_evaluator = dict(metric='bbox')
train_cfg = dict(_delete_=True, type='ResumableEpochLoop', max_epochs=2)
sampler = dict(_delete_=True, type='DefaultSampler', shuffle=False, round_up=False)
train_dataloader = dict(batch_size=1, sampler=sampler)
"""


@pytest.mark.slow
def test_unequal_shares_images_without_objects_and_unused_layers_do_not_hang_the_processes(
    shapes_root, tmp_path
):
    """Seven images: four with objects for the first process, three without for the second.

    RetinaNet leaves a map out, so that DistributedDataParallel must look for its parameters.
    """
    root = Path(shutil.copytree(shapes_root, tmp_path / 'shapes'))
    ann_file = root / 'coco/annotations/instances_train2017.json'
    content = json.loads(ann_file.read_text())
    content['images'] = sorted(content['images'], key=lambda image: image['id'])[:7]
    with_objects = {image['id'] for image in content['images'][::2]}
    content['annotations'] = [a for a in content['annotations'] if a['image_id'] in with_objects]
    ann_file.write_text(json.dumps(content))
    names = 'retinanet_xcit', 'shapes_instance', 'schedule_shapes'
    bases = [str(ROOT / f'configs/_base_/{name}.py') for name in names]
    (tmp_path / 'own.py').write_text(RETINANET.format(bases=bases))
    arguments = ['--work-dir', tmp_path / 'work', '--cfg-options', f'data_root={root}']
    arguments += ['default_hooks.logger.interval=1', 'val_dataloader=None', 'val_cfg=None']
    arguments += ['val_evaluator=None']
    run_script('tools/dist_train.sh', tmp_path / 'own.py', 2, *arguments, OMP_NUM_THREADS=1)
    assert steps(tmp_path / 'work') == list(range(1, 9))  # four an epoch, for both
