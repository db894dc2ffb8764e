"""A training that is killed again and again, beside one that is left alone.

    killed_runs.py CONFIG SHAPES FOLDER PROCESSES KILLS

Each life of a run is a process, or several that talk through gloo, forked from this one, which
has imported everything: only so 20 of them fit into a test. What they write is in
FOLDER/{whole,killed} and FOLDER/*.log; how often and where they were killed is printed.
"""

import os
import random
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

from xcit_mm import UserError
from xcit_mm.engine import train
from xcit_mm.engine.resume import has_checkpoints
from xcit_mm.engine.train import FRAMEWORK_PARTS
from xcit_mm.environment import require

for package in ('mmdet', 'mmseg'):  # all that takes long, before the first fork
    for part in FRAMEWORK_PARTS:
        require(f'{package}.{part}')

NUM_ITERS = 36
OPTIONS = {
    'train_cfg.max_iters': NUM_ITERS,
    'train_cfg.val_interval': NUM_ITERS // 2,
    'default_hooks.checkpoint.interval': 1,
    'default_hooks.checkpoint.max_keep_ckpts': 3,
    'default_hooks.logger.interval': 1,
    'train_dataloader.batch_size': 2,
    'model.backbone.drop_path_rate': 0.2,  # random numbers in the model
    'param_scheduler.0.end': 8,
}


def live(config: str, shapes: str, work_dir: Path, processes: int) -> list[int]:
    """Start the processes of one life."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    children = []
    resume = has_checkpoints(str(work_dir))
    for rank in range(processes):
        child = os.fork()
        if child:
            children.append(child)
            continue
        code = 1
        try:
            log = os.open(f'{work_dir}.{rank}.log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            launcher = 'none'
            if processes > 1:
                launcher = 'pytorch'
                address = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=port, WORLD_SIZE=processes)
                place = dict(RANK=rank, LOCAL_RANK=rank)
                os.environ |= {k: str(v) for k, v in (address | place).items()}
            options = {'data_root': shapes, **OPTIONS}
            train(config, str(work_dir), resume=resume, launcher=launcher, options=options)
            code = 0
        except UserError as error:
            print(error, flush=True)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return children


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


def main(config: str, shapes: str, folder: str, processes: str, kills: str) -> None:
    whole, killed = Path(folder, 'whole'), Path(folder, 'killed')
    start = time.monotonic()
    children = live(config, shapes, whole, int(processes))
    wait_for(whole / 'iter_1.pth', children)
    first = time.monotonic() - start  # seconds to the first checkpoint
    wait(children)
    step = (time.monotonic() - start - first) / NUM_ITERS
    chance = random.Random(0)
    newest = 0
    for number in range(int(kills)):
        children = live(config, shapes, killed, int(processes))
        # In turn: while it gets ready, and some time after a step that it has got on by.
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
    wait(live(config, shapes, killed, int(processes)))


if __name__ == '__main__':
    main(*sys.argv[1:])
