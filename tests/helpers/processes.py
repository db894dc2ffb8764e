"""Two processes that communicate by gloo."""

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import torch


def in_two_processes(function: Callable[[int], None], folder: Path) -> None:
    """Call a function with the rank 0 or 1 in two forks of this process; both have to succeed."""
    children = []
    for rank in (0, 1):
        children.append(os.fork())
        if children[-1]:
            continue
        code = 1
        try:
            os.environ['LOCAL_RANK'] = str(rank)
            torch.set_num_threads(1)  # a fork would wait for OpenMP's threads, which it lacks
            address = f'file://{folder}/store'
            torch.distributed.init_process_group('gloo', address, rank=rank, world_size=2)
            function(rank)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
