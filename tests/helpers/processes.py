"""Processes that communicate by gloo."""

import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

import torch
import torch.distributed as dist

from . import ROOT


def in_processes(count: int, function: Callable[[int], None], folder: Path) -> None:
    """Call a function with its rank in connected forks of this process, which have to succeed."""

    def connect_and_call(rank: int) -> None:
        address = f'file://{folder}/store_of_{count}'
        dist.init_process_group('gloo', address, rank=rank, world_size=count)
        function(rank)

    forked(count, connect_and_call)


def forked(count: int, function: Callable[[int], None]) -> None:
    """Call a function with its rank in forks of this process, which all have to succeed."""
    assert [os.waitpid(child, 0)[1] for child in start_forks(count, function)] == [0] * count


def start_forks(count: int, function: Callable[[int], object]) -> list[int]:
    """Call a function with its rank in forks of this process, and return their numbers."""

    def call(rank: int) -> None:
        os.environ['LOCAL_RANK'] = str(rank)
        function(rank)

    return [start_child(partial(call, rank)) for rank in range(count)]


def in_child(function: Callable[[], None]) -> int:
    """Call a function in a fork of this process, and return the status of its end."""
    return os.waitpid(start_child(function), 0)[1]


def start_child(function: Callable[[], None]) -> int:
    """Call a function in a fork of this process, and return the number of the process."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        torch.set_num_threads(1)  # a fork would wait for OpenMP's threads, which it lacks
        function()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


@contextmanager
def torchrun(count: int) -> Iterator[dict[str, str]]:
    """Hold the store where processes meet, and yield the environment of torchrun's processes."""
    store = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)
    yield dict(
        MASTER_ADDR='127.0.0.1',
        MASTER_PORT=str(store.port),
        TORCHELASTIC_USE_AGENT_STORE='True',
        TORCHELASTIC_RESTART_COUNT='0',
        WORLD_SIZE=str(count),
    )
    del store


@contextmanager
def torchruns(number: int, count: int) -> Iterator[list[dict[str, str]]]:
    """Yield the environments of ``number`` runs of torchrun, one after the other."""
    with ExitStack() as stack:
        yield [stack.enter_context(torchrun(count)) for _ in range(number)]


def run_in_fork(tool: str, *arguments: object) -> tuple[int, str]:
    """Run a tool in a fork, and return its exit code and what it prints."""
    sys.argv = [f'tools/{tool}', *map(str, arguments)]
    printed, code = StringIO(), 0
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            runpy.run_path(str(ROOT / 'tools' / tool), run_name='__main__')
        except SystemExit as end:
            code = end.code or 0
    return code, printed.getvalue()
