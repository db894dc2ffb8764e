"""Processes that communicate by gloo."""

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import torch


def in_processes(count: int, function: Callable[[int], None], folder: Path) -> None:
    """Call a function with its rank in forks of this process, which all have to succeed."""
    children = []
    for rank in range(count):
        children.append(os.fork())
        if children[-1]:
            continue
        code = 1
        try:
            os.environ['LOCAL_RANK'] = str(rank)
            torch.set_num_threads(1)  # a fork would wait for OpenMP's threads, which it lacks
            address = f'file://{folder}/store_of_{count}'
            torch.distributed.init_process_group('gloo', address, rank=rank, world_size=count)
            function(rank)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    codes = [os.waitpid(child, 0)[1] for child in children]
    assert codes == [0] * count
