"""Trainings as a user types them, and what they leave in their work dir."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

import pytest
import torch

from . import ROOT, TIMEOUT, wait_until
from .tool_server import Process, forked_python

DETECTOR = 'configs/mask_rcnn_xcit_n12_16_shapes.py'
SEGMENTOR = 'configs/sem_fpn_xcit_n12_16_shapes.py'


# Hooks whose drawings take longer than the steps of a short run.
UNDRAWN = {'default_hooks.report': None, 'default_hooks.errors': None}


def options(shapes_root: Path, max_iters: int, drawn: bool = False) -> list[str]:
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
        'val_dataloader.num_workers=0',
        'val_dataloader.persistent_workers=False',
        'log_processor.window_size=1',
        'param_scheduler.0.end=8',  # the warm-up of 50 is longer than these runs
        'optim_wrapper.optimizer.lr=1e-3',  # half of it for half of the recipe's batch
        *(f'{name}={value}' for name, value in UNDRAWN.items() if not drawn),
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


def family(pid: int) -> list[int]:
    """A process with its children and theirs, which torchrun gives sessions of their own."""
    command = ['ps', '-o', 'pid=', '--ppid', str(pid)]
    children = map(int, subprocess.run(command, capture_output=True, text=True).stdout.split())
    return [*(member for child in children for member in family(child)), pid]


class Running:
    """A tool, or a script of tools/ that starts several, in a process group of its own.

    Python and its imports come from the server of tool_server.py. ``env`` are variables to add
    to the environment.
    """

    def __init__(self, *command: object, **env: object) -> None:
        words, python = list(map(str, command)), str(forked_python())
        variables = os.environ | {name: str(value) for name, value in env.items()}
        variables |= {'PYTHONFAULTHANDLER': '1', 'PYTHON_EXEC': python}
        if words[0].endswith('.sh'):
            words, variables = started_by(words, variables)
        self._output = TemporaryFile('w+', errors='replace')  # noqa: SIM115  closed with this
        self.process = Process(words, self._output, self._output, env=variables)

    def wait_for(self, folder: Path, num_steps: int) -> None:
        def is_there() -> bool:
            assert self.process.poll() is None, self._printed()
            return len(steps(folder)) >= num_steps

        wait_until(is_there)

    def end(self) -> tuple[int, str]:
        """Return the exit code and what was printed."""
        try:
            self.process.wait(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            for pid in family(self.process.pid):
                os.kill(pid, signal.SIGABRT)  # it prints where it is, and ends
                time.sleep(1)  # and nothing in between
            self.process.wait()
            pytest.fail(f'hangs:\n{self._printed()[-20000:]}')
        return self.process.returncode, self._printed()

    def _printed(self) -> str:
        self._output.seek(0)
        return self._output.read()


def started_by(command: list[str], env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and the environment with which a script starts Python."""
    with TemporaryDirectory() as folder:
        stub = Path(folder, 'python')
        stub.write_text('#!/bin/sh\nenv -0\nprintf "\\0"\nprintf "%s\\0" "$@"\n')
        stub.chmod(0o755)
        options = dict(cwd=ROOT, env=env | {'PYTHON': str(stub)}, check=True, text=True)
        printed = subprocess.run(command, stdout=subprocess.PIPE, **options).stdout
    variables, arguments = printed.split('\0\0', 1)
    pairs = (line.split('=', 1) for line in variables.split('\0'))
    return arguments.removesuffix('\0').split('\0'), dict(pairs)


def run_script(*command: object, **env: object) -> str:
    """Run a script of tools/ that starts several processes, and return what is printed."""
    if 'PYTHON' in env:  # a stub
        variables = os.environ | {name: str(value) for name, value in env.items()}
        options = dict(cwd=ROOT, env=variables, capture_output=True, text=True, check=True)
        return subprocess.run(list(map(str, command)), **options).stdout
    code, output = Running(*command, **env).end()
    assert code == 0, output  # the first traceback is of the process that failed first
    return output
