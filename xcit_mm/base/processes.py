"""The processes of a run: connected, compared in what they are about to do, and ended together.

Processes that do different things would exchange numbers that do not belong together, and a process
that stops alone would leave the others waiting.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from socket import gethostname
from typing import Any

import torch
import torch.distributed as dist
from mmengine.dist import all_gather_object, all_reduce, get_rank, get_world_size
from torch import nn

from .errors import ProcessesError, UserError, one_line, reason
from .files import open_regular

CONNECT_TIMEOUT = timedelta(minutes=30)  # PyTorch's default for gloo
# A crashed process is noticed at once, but one that is writing its result may take hours.
TIMEOUT = timedelta(days=1)
MAX_NAMED = 3  # differences in one sentence
BLOCK = 2**20  # bytes of a file that are read at a time
GLOO = re.compile(r'\bgloo\b', re.I)  # in gloo's errors, which are plain RuntimeErrors


def connect(timeout: timedelta = CONNECT_TIMEOUT) -> None:
    """Connect the processes that torchrun started, by gloo.

    Raises:
        UserError: If processes are missing at the end of the time, or cannot be reached.
    """
    try:
        dist.init_process_group('gloo', timeout=timeout)
        cpu_group()  # now: later a process may have ended, and only a connection shows that
    except RuntimeError as error:
        address = f'{os.environ["MASTER_ADDR"]}:{os.environ["MASTER_PORT"]}'
        raise UserError(
            f'not all {os.environ["WORLD_SIZE"]} processes can be connected at {address} '
            f'({reason(error)}): see the messages of the others, and start all of them again; '
            'between machines, all ports must be open, and GLOO_SOCKET_IFNAME names the network '
            'if there are several'
        ) from error


@contextmanager
def connected() -> Iterator[bool]:
    """Connect the processes of torchrun within a ``with`` block; yield whether there are any."""
    are_many = int(os.environ.get('WORLD_SIZE', '1')) > 1
    if are_many:
        connect()
    try:
        yield are_many
    finally:
        if are_many:
            dist.destroy_process_group()


def cpu_group() -> dist.ProcessGroup | None:
    """Return a gloo group for small messages, or None for a single process.

    A message through a GPU would wait until the GPU has finished its work. The first call creates
    the group, so all processes must make it at the same point.
    """
    return _gloo_group(dist.group.WORLD) if get_world_size() > 1 else None


@cache
def _gloo_group(world: dist.ProcessGroup) -> dist.ProcessGroup:
    return dist.new_group(timeout=TIMEOUT, backend='gloo')


def own_group() -> dist.ProcessGroup | None:
    """Return a gloo group of this process alone, or None for a single process.

    With it, code that shares an image among the processes of a group computes the whole image here.
    The first call creates the groups, so all processes must make it at the same point.
    """
    return _single_group(dist.group.WORLD) if get_world_size() > 1 else None


@cache
def _single_group(world: dist.ProcessGroup) -> dist.ProcessGroup:
    groups = [dist.new_group([rank], backend='gloo') for rank in range(get_world_size())]
    return groups[get_rank()]


@contextmanager
def lost_processes_named() -> Iterator[None]:
    """Turn the error of an exchange with a process that has ended into a :class:`ProcessesError`.

    The error of gloo or NCCL is its cause.
    """
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not GLOO.search(str(error)):
            raise
        raise ProcessesError(
            'another process has ended: see its message, and start all processes again; training '
            'continues with --resume, and a prediction with a store on the disk continues there'
        ) from error


class SharedError(UserError):
    """An error of some processes that all of them raise."""


@lost_processes_named()
def share_errors(
    error: UserError | None = None, group: dist.ProcessGroup | None = None, number: int = 0
) -> int:
    """Return the largest ``number`` of all processes, or stop all of them at an ``error`` of any.

    All processes call it before every exchange of data inside :func:`all_processes`. A process that
    cannot continue calls it instead of the exchange, so no process waits for one that has left.
    """
    largest = torch.tensor([error is not None, number], dtype=torch.long)
    all_reduce(largest, 'max', group)
    if not largest[0]:
        return int(largest[1])
    problem = None if error is None else str(error)
    place = f'process {get_rank(group) + 1} on {gethostname()}'
    problems = all_gather_object((place, problem), group)
    if error is not None and all(other == problem for _, other in problems):
        raise error
    raise SharedError(next(f'{place}: {text}' for place, text in problems if text is not None))


@contextmanager
def all_processes(group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Raise a UserError of one process in the ``with`` block in all processes.

    All processes leave the block together. Inside it they have to make the same exchanges, each
    after :func:`share_errors`. An error of another type ends the process, and the others notice its
    end.
    """
    problem = None
    try:
        yield
    except (ProcessesError, SharedError):  # the others raise it as well, or have ended
        raise
    except UserError as error:
        problem = error
    share_errors(problem, group)


def require_same(
    values: Mapping[str, Any], group: dist.ProcessGroup | None = None, about: str = ''
) -> None:
    """Compare values in all processes, and raise the same sentence in all if some differ.

    Args:
        values: Names for the sentence, and texts, numbers or short digests. A value that only some
            processes have differs as well.
        group: The processes, which all have to call this function. Default: all processes.
        about: What they are about to do, as the start of the sentence.

    Raises:
        ProcessesError: If a value differs.
    """
    own = {name: str(value) for name, value in values.items()}
    share_errors(None, group)
    with lost_processes_named():
        (host, first), *others = all_gather_object((gethostname(), own), group)
    differences = [
        f'{name} is {_quoted(first, name)} in process 1 on {host} and {_quoted(other, name)} in '
        f'process {number} on {other_host}'
        for number, (other_host, other) in enumerate(others, 2)
        for name in first | other
        if other.get(name) != first.get(name)
    ]
    if differences:
        raise ProcessesError(
            f'{about}{": " if about else ""}the processes differ: '
            f'{"; ".join(differences[:MAX_NAMED])}: start all of them with the same command, '
            'files and versions'
        )


def _quoted(values: Mapping[str, str], name: str) -> str:
    return one_line(values.get(name, 'missing'), 80)


def digest_of_file(path: Path) -> str:
    """Return a short digest of the bytes of a file. The whole file is read."""
    digest = hashlib.sha256()
    try:
        with open_regular(path) as file:
            while block := file.read(BLOCK):
                digest.update(block)
    except OSError as error:
        raise UserError(f'{path} cannot be read ({reason(error)}): copy or repair it') from None
    return shortened(digest)


def digest_of_module(module: nn.Module, settings: str = '') -> str:
    """Return a short digest of the weights, buffers and layers of a module, and of ``settings``."""
    digest = hashlib.sha256(f'{module!r}{settings}'.encode())
    for name, tensor in (*module.state_dict().items(), *module.named_buffers()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return shortened(digest)


def shortened(digest: Any) -> str:
    """Return enough of a digest of hashlib to compare it and to show it."""
    return digest.hexdigest()[:16]
