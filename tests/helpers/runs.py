"""Trainings as a user types them, and what they leave in their work dir."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from . import PATIENCE, ROOT, wait_until

DETECTOR = 'configs/mask_rcnn_xcit_n12_16_shapes.py'
SEGMENTOR = 'configs/sem_fpn_xcit_n12_16_shapes.py'


def options(shapes_root: Path, max_iters: int) -> list[str]:
    return [
        '--cfg-options',
        f'data_root={shapes_root}',
        f'train_cfg.max_iters={max_iters}',
        f'train_cfg.val_interval={max_iters}',
        f'default_hooks.checkpoint.interval={max_iters}',
        'default_hooks.logger.interval=1',
        'train_dataloader.batch_size=4',
        'train_dataloader.num_workers=0',
        'train_dataloader.persistent_workers=False',
        'log_processor.window_size=1',
        'param_scheduler.0.end=8',  # the warm-up of 50 is longer than these runs
        'optim_wrapper.optimizer.lr=1e-3',  # half of it for half of the recipe's batch
    ]


def losses(work_dir: Path) -> dict[int, float]:
    """The logged losses by iteration, of all runs in a work dir."""
    lines = [
        json.loads(line)
        for file in sorted(work_dir.glob('*/vis_data/scalars.json'))
        for line in file.read_text().splitlines()
    ]
    return {line['step']: line['loss'] for line in lines if 'loss' in line}


def assert_refused(done, message: str) -> None:
    """One line, exit code 2, no traceback."""
    assert done.returncode == 2
    assert message in done.stderr
    assert 'Traceback' not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith(('tools/', 'train.py: error:'))


def weights(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=False)['state_dict']


def steps(folder: Path) -> list[int]:
    path = folder / 'losses.jsonl'
    lines = path.read_text().splitlines() if path.is_file() else []
    return [json.loads(line)['iter'] for line in lines if line.endswith('}')]


def children_of(pid: int) -> list[int]:
    listed = subprocess.run(
        ['ps', '-o', 'pid=', '--ppid', str(pid)], capture_output=True, text=True
    )
    return sorted(map(int, listed.stdout.split()))


def family(pid: int) -> list[int]:
    """A process with its children and theirs, which torchrun gives sessions of their own."""
    return [*(member for child in children_of(pid) for member in family(child)), pid]


class Running:
    """A tool in a process group of its own, as a shell starts it."""

    def __init__(self, *command: object, **env: object) -> None:
        self.process = subprocess.Popen(
            list(map(str, command)),
            cwd=ROOT,
            env=os.environ
            | {'PYTHON': sys.executable, 'PYTHONFAULTHANDLER': '1'}
            | {k: str(v) for k, v in env.items()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, folder: Path, num_steps: int) -> None:
        def is_there() -> bool:
            assert self.process.poll() is None, self.process.stdout.read()
            return len(steps(folder)) >= num_steps

        wait_until(is_there)

    def end(self) -> tuple[int, str, float]:
        """The exit code, what was printed, and the seconds that it took."""
        start = time.monotonic()
        try:
            output, _ = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            for pid in family(self.process.pid):
                os.kill(pid, signal.SIGABRT)  # it prints where it is, and ends
                time.sleep(1)  # and nothing in between
            output, _ = self.process.communicate()
            pytest.fail(f'hangs:\n{output[-20000:]}')
        return self.process.returncode, output, time.monotonic() - start


def run_script(*args: object, **env: object) -> str:
    done = subprocess.run(
        list(map(str, args)),
        cwd=ROOT,
        env=os.environ | {'PYTHON': sys.executable} | {k: str(v) for k, v in env.items()},
        capture_output=True,
        text=True,
    )
    # The first traceback is that of the process which failed first: all of it.
    assert done.returncode == 0, done.stderr + done.stdout[-3000:]
    return done.stdout + done.stderr
