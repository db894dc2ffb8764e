"""Many processes, as a user starts them: on the CPU, where they communicate through gloo."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from helpers import ROOT
from helpers.runs import DETECTOR, losses, options, run_script, weights

NUM_ITERS = 12
HOOK = '''
import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class DumpHook(Hook):
    """Write the model of each process and the images that it has seen."""

    priority = 'LOWEST'

    def __init__(self, folder):
        self.folder = folder
        self.images = []

    def before_train_iter(self, runner, batch_idx, data_batch):
        self.images += [sample.img_path for sample in data_batch['data_samples']]

    def after_train(self, runner):
        content = runner.model.module.state_dict(), self.images
        torch.save(content, f'{self.folder}/rank{get_rank()}.pth')
'''


@pytest.fixture(scope='module')
def run(shapes_root, tmp_path_factory):
    """A training of the shapes detector in two processes: its folder and what it printed."""
    folder = tmp_path_factory.mktemp('distributed')
    (folder / 'dump.py').write_text(HOOK)
    (folder / 'own.py').write_text(
        f"_base_ = '{ROOT / DETECTOR}'\n"
        "custom_imports = dict(imports=['xcit_mm', 'dump'])\n"
        f"custom_hooks = [dict(type='DumpHook', folder='{folder}')]\n"
        'randomness = dict(seed=0, diff_rank_seed=True)\n'
    )
    arguments = ['--work-dir', folder / 'work', *options(shapes_root, NUM_ITERS, True)]
    arguments += ['train_dataloader.batch_size=2']
    output = run_script('tools/dist_train.sh', folder / 'own.py', 2, *arguments, PYTHONPATH=folder)
    return folder, output


def test_two_processes_train_one_model(run):
    folder, output = run
    history = losses(folder / 'work')
    assert sorted(history) == list(range(1, NUM_ITERS + 1))
    first, last = range(1, 4), range(NUM_ITERS - 2, NUM_ITERS + 1)
    assert sum(history[i] for i in last) < 0.9 * sum(history[i] for i in first)
    assert output.count('The training is finished.') == 1
    assert 'the processes communicate through gloo' in output
    # Two processes with two images each, where the recipe of the shapes has eight.
    scaled = 'batch size of 8 and the current batch size is 4. Scaling the original LR by 0.5'
    assert scaled in output
    files = [folder / f'rank{rank}.pth' for rank in (0, 1)]
    (first, images), (second, other_images) = map(torch.load, files)
    assert len({*images[:12], *other_images[:12]}) == 24  # an epoch, also with diff_rank_seed
    saved = weights(folder / f'work/iter_{NUM_ITERS}.pth')
    assert first.keys() == second.keys() == saved.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name
        assert torch.equal(first[name], saved[name]), name


@pytest.mark.slow
def test_two_processes_measure_what_one_does(run, run_tool, shapes_root):
    folder, _ = run
    checkpoint = folder / f'work/iter_{NUM_ITERS}.pth'

    def arguments(name: str) -> list:
        outputs = ['--work-dir', folder / name, '--out', folder / f'{name}.json']
        outputs += ['--errors', folder / f'{name}_errors']
        prefix = f'test_evaluator.outfile_prefix={folder}/{name}'
        threshold = 'model.test_cfg.rcnn.score_thr=0.01'  # after so short a training
        return [*outputs, '--cfg-options', f'data_root={shapes_root}', threshold, prefix]

    run_script('tools/dist_test.sh', DETECTOR, checkpoint, 2, *arguments('two'))
    done = run_tool('test.py', DETECTOR, checkpoint, *arguments('one'))
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = (json.loads((folder / f'{n}.json').read_text())['metrics'] for n in ('one', 'two'))
    assert two == pytest.approx(one, abs=1e-6)
    assert {'coco/bbox_mAP', 'coco/segm_mAP'} <= set(one)
    assert max(one.values()) > 0
    of_one, of_two = (
        {p.relative_to(path): p.read_text() for p in path.glob('*/co*.csv')}
        for path in (folder / f'{name}_errors' for name in ('one', 'two'))
    )
    assert of_two == of_one and len(of_one) == 4  # the confusions, and the counts of each image
    predictions = [json.loads((folder / f'{n}.bbox.json').read_text()) for n in ('one', 'two')]
    key = lambda p: (p['image_id'], p['category_id'], *p['bbox'])  # noqa: E731
    one, two = (sorted(p, key=key) for p in predictions)
    assert len(one) == len(two) > 100
    for a, b in zip(one, two, strict=True):
        assert (a['image_id'], a['category_id']) == (b['image_id'], b['category_id'])
        assert a['bbox'] == pytest.approx(b['bbox'], abs=1e-3)
        assert a['score'] == pytest.approx(b['score'], abs=1e-6)


def test_a_script_that_lacks_an_argument_names_it():
    command = ['tools/dist_train.sh', DETECTOR]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert 'usage: tools/dist_train.sh CONFIG GPUS' in done.stderr


@pytest.fixture
def recorded(tmp_path) -> Path:
    """The folder of a PYTHON and an srun that write down their arguments."""
    for name in ('python', 'srun'):
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/{name}.called\n')
        path.chmod(0o755)
    return tmp_path


def called(path: Path) -> str:
    return ' '.join(path.read_text().replace(f'{ROOT}/', '').splitlines())


def test_several_machines_meet_at_the_first_one(recorded):
    machines = dict(NNODES=2, NODE_RANK=1, MASTER_ADDR='10.0.0.1', PORT=12345)
    arguments = ['config.py', 8, '--work-dir', 'a folder']
    run_script('tools/dist_train.sh', *arguments, PYTHON=recorded / 'python', **machines)
    assert called(recorded / 'python.called') == (
        '-m torch.distributed.run --nnodes=2 --node_rank=1 --master_addr=10.0.0.1 '
        '--master_port=12345 --nproc_per_node=8 --max-restarts=0 '
        'tools/train.py config.py --work-dir a folder --launcher pytorch'
    )
    assert 'a folder' in (recorded / 'python.called').read_text().splitlines()


def test_slurm_starts_a_process_for_every_gpu(recorded):
    env = dict(PATH=f'{recorded}:{os.environ["PATH"]}', PYTHON='python', GPUS=16)
    env['SRUN_ARGS'] = '--time=3 --exclusive'
    run_script('tools/slurm_train.sh', 'gpu', 'job', 'config.py', '--resume', **env)
    assert called(recorded / 'srun.called') == (
        '--partition=gpu --job-name=job --gres=gpu:8 --ntasks=16 --ntasks-per-node=8 '
        '--cpus-per-task=5 --kill-on-bad-exit=1 --time=3 --exclusive '
        'python -u tools/train.py config.py --resume --launcher slurm'
    )
