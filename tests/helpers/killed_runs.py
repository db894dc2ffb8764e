"""A training that is killed repeatedly, and an uninterrupted one.

    killed_runs.py CONFIG SHAPES FOLDER PROCESSES KILLS ITERATIONS

Each start of a run is a process, or several that communicate through gloo, forked from this one,
which tool_server.py has forked with everything imported. They write to FOLDER/{whole,killed} and
FOLDER/*.log. Prints the newest checkpoint after each kill.
"""

import os
import random
import signal
import socket
import sys
import time
from pathlib import Path

from helpers.processes import start_forks
from helpers.runs import UNDRAWN
from xcit_mm.base.run_files import has_checkpoints
from xcit_mm.train import train

OPTIONS = {
    'default_hooks.checkpoint.interval': 1,
    'default_hooks.checkpoint.max_keep_ckpts': 3,
    'default_hooks.logger.interval': 1,
    **UNDRAWN,
    'train_dataloader.batch_size': 2,
    'model.backbone.drop_path_rate': 0.2,  # random numbers in the model
    'param_scheduler.0.end': 8,
}


def start(config: str, options: dict, work_dir: Path, processes: int) -> list[int]:
    """Start or resume a run, and return its processes."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    address = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=port, WORLD_SIZE=processes)
    arguments = dict(resume=has_checkpoints(str(work_dir)), options=options)

    def run(rank: int) -> None:
        log = os.open(f'{work_dir}.{rank}.log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if processes > 1:
            os.environ |= {name: str(value) for name, value in (address | dict(RANK=rank)).items()}
            arguments['launcher'] = 'pytorch'
        train(config, str(work_dir), **arguments)

    return start_forks(processes, run)


def wait(children: list[int]) -> None:
    for child in children:
        _, status = os.waitpid(child, 0)
        if status:
            raise SystemExit(f'a process ended with status {status}')


def wait_for(path: Path, children: list[int]) -> None:
    while not path.exists():
        if os.waitid(os.P_PID, children[0], os.WEXITED | os.WNOHANG | os.WNOWAIT):
            break  # which the next wait reports
        time.sleep(0.02)


def main(
    config: str, shapes: str, folder: str, processes: int, kills: int, iterations: int
) -> None:
    whole, killed = Path(folder, 'whole'), Path(folder, 'killed')
    lengths = {'train_cfg.max_iters': iterations, 'train_cfg.val_interval': iterations // 2}
    options = {**OPTIONS, **lengths, 'data_root': shapes}
    began = time.monotonic()
    children = start(config, options, whole, processes)
    wait_for(whole / 'iter_1.pth', children)
    first = time.monotonic() - began  # seconds to the first checkpoint
    wait(children)
    step = (time.monotonic() - began - first) / iterations
    chance = random.Random(0)
    newest = 0
    for number in range(kills):
        children = start(config, options, killed, processes)
        # In turn: during the start, and some time after a further step.
        seconds = chance.uniform(0, first if number % 2 else 3 * step)
        if not number % 2:
            wait_for(killed / f'iter_{newest + 1}.pth', children)
        time.sleep(seconds)
        chance.shuffle(children)
        for child in children:  # one dies before the other, if there are two
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        newest = max((int(path.stem[5:]) for path in killed.glob('iter_*.pth')), default=0)
        print(f'killed, newest checkpoint {newest}', flush=True)
    wait(start(config, options, killed, processes))


if __name__ == '__main__':
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
