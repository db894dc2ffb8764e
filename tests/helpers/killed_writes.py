"""Processes that write one checkpoint after the other, each killed at a random moment.

    killed_writes.py FOLDER KILLS KEPT

Prints the iteration of the newest readable checkpoint and the number of unfinished files after each
kill. At the end one more checkpoint is written, and the files are listed.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from helpers.processes import start_forks
from helpers.toy import toy_runner
from xcit_mm.train.checkpoints.checkpoint_hook import WholeCheckpointHook
from xcit_mm.train.checkpoints.newest import newest_checkpoint

BALLAST = 2 * 10**6  # numbers, so that writing takes most of the time
LONGEST = 0.15  # seconds, in which an idle machine writes many checkpoints


def write(folder: Path, kept: int, last: dict | None, number: int = 10**6) -> None:
    """Write that many checkpoints, like a run that is resumed from the last one."""
    options = {'default_hooks.checkpoint.max_keep_ckpts': kept, 'log_level': 'ERROR'}
    runner = toy_runner(folder, **options)
    runner._train_loop = runner.build_train_loop(runner._train_loop)
    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    runner.model.register_buffer('ballast', torch.zeros(BALLAST))
    (hook,) = (hook for hook in runner.hooks if isinstance(hook, WholeCheckpointHook))
    first = 0
    if last is not None:
        runner._resume, first = True, last['meta']['iter']
        runner.message_hub.load_state_dict(last['message_hub'])
    hook.before_train(runner)
    (folder / 'ready').touch()
    for runner._train_loop._iter in range(first, first + number):
        hook.save_unscheduled(runner, runner.iter + 1)


def main(folder: Path, kills: int, kept: int) -> None:
    chance = random.Random(0)
    newest, last = 0, None
    for number in range(kills):
        (folder / 'ready').unlink(missing_ok=True)
        (child,) = start_forks(1, lambda rank, last=last: write(folder, kept, last))
        while not (folder / 'ready').exists():
            if os.waitpid(child, os.WNOHANG)[0]:
                raise SystemExit('a process ended before it was killed')
            time.sleep(0.001)
        if number % 2:  # during a write
            while True:
                os.kill(child, signal.SIGSTOP)
                os.waitpid(child, os.WUNTRACED)
                if any(folder.glob('.iter_*.pth.*')):
                    break
                os.kill(child, signal.SIGCONT)
                time.sleep(chance.uniform(0, 0.01))
        else:  # at any time after one more is whole
            while not any(int(file.stem[5:]) > newest for file in folder.glob('iter_*.pth')):
                pass
            time.sleep(chance.uniform(0, LONGEST))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        unfinished = list(folder.glob('.iter_*.pth.*'))
        if list(folder.glob('iter_*.pth')):
            path, notes = newest_checkpoint(str(folder))
            last = torch.load(path, weights_only=False)
            newest = last['meta']['iter']
            assert path.name == f'iter_{newest}.pth' and not notes, (path, notes)
        print('killed:', newest, len(unfinished), flush=True)
    write(folder, kept, last, number=1)
    print('at the end', *sorted(file.name for file in folder.glob('iter_*.pth')))


if __name__ == '__main__':
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
