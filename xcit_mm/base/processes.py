"""The processes of a run: connected, compared in what they are about to do, and ended together.

Processes that do different things would exchange numbers that do not belong together, and a process
that stops alone would leave the others waiting.
"""

import hashlib
import os
import re
import sys
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

TO_CONNECT = timedelta(minutes=10)
NOTICE = timedelta(seconds=20)  # after which a waiting process says which others are missing
# A crashed process is noticed at once, but one that is writing its result may take hours.
PATIENCE = timedelta(days=1)
MAX_NAMED = 3  # differences in one sentence
BLOCK = 2**20  # bytes of a file that are read at a time
GLOO = re.compile(r'\bgloo\b', re.I)  # in gloo's errors, which are plain RuntimeErrors


def connect(within: timedelta = TO_CONNECT) -> None:
    """Connect the processes that torchrun started, by gloo.

    Later exchanges may take a day. A process that has waited for a while prints which others are
    missing.

    Args:
        within: How long the other processes may take to start.

    Raises:
        UserError: If processes are missing by then, or cannot be reached.
    """
    rank, count = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    address = f'{os.environ["MASTER_ADDR"]}:{os.environ["MASTER_PORT"]}'
    store, patience = None, min(NOTICE, within)
    minutes = f'{within.total_seconds() / 60:g} minutes'
    while True:
        try:
            store = store or _store(rank, patience)
            _wait_for_all(store, 'arrived', rank, count, patience)
            break
        except dist.DistError as error:
            problem = _who_is_missing(store, count, address, error)
        if patience == within:
            raise UserError(
                f'{problem}, after {minutes}: see the messages of the others, and start all of '
                'them again, on machines that reach this address'
            )
        print(f'{problem}; waiting {minutes}', file=sys.stderr, flush=True)
        patience = within
    try:
        # The first connection, with a timeout of ten minutes, only tests that all processes reach
        # each other. It is closed once all processes have it. The second one is used.
        settings = dict(rank=rank, world_size=count)
        test, run = (dist.PrefixStore(name, store) for name in ('test', 'run'))
        dist.init_process_group('gloo', store=test, timeout=within, **settings)
        _wait_for_all(store, 'connected', rank, count, within)
        dist.destroy_process_group()
        dist.init_process_group('gloo', store=run, timeout=PATIENCE, **settings)
        cpu_group()  # now: later a process may have ended, and only a connection shows that
    except RuntimeError as error:
        raise UserError(
            f'all processes have arrived at {address}, but this one cannot connect to the others '
            f'({reason(error)}): open all ports between the machines, and name the network with '
            'GLOO_SOCKET_IFNAME if there are several'
        ) from error


def _wait_for_all(
    store: dist.Store, stage: str, rank: int, count: int, patience: timedelta
) -> None:
    store.set(f'{stage}_{rank}', '')
    store.wait([f'{stage}_{i}' for i in range(count)], patience)


def _store(rank: int, patience: timedelta) -> dist.Store:
    """Return the store of the first process or of torchrun, which all processes share."""
    is_server = rank == 0 and os.environ.get('TORCHELASTIC_USE_AGENT_STORE') != 'True'
    host, port = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])
    settings = dict(is_master=is_server, timeout=patience, wait_for_workers=False)
    settings['use_libuv'] = os.environ.get('USE_LIBUV', '1') == '1'  # not in PyTorch for Windows
    try:
        store = dist.TCPStore(host, port, **settings)
    except dist.DistNetworkError as error:
        if not is_server:
            raise
        raise UserError(
            f'the first process cannot listen at {host}:{port} ({reason(error)}): name an address '
            'of its machine with MASTER_ADDR, and a free port with MASTER_PORT'
        ) from error
    restarts = os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')
    return dist.PrefixStore(f'xcit_mm_{restarts}', store)


def _who_is_missing(
    store: dist.Store | None, count: int, address: str, error: dist.DistError
) -> str:
    """Return how many processes have arrived, and which have not."""
    try:
        missing = [i + 1 for i in range(count) if store and not store.check([f'arrived_{i}'])]
    except dist.DistError:
        missing = []
    if not missing:
        return f'the first of {count} processes does not answer at {address} ({reason(error)})'
    numbers = ', '.join(map(str, missing))
    arrived = count - len(missing)
    return f'only {arrived} of {count} processes have arrived at {address} (missing: {numbers})'


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
    return dist.new_group(timeout=PATIENCE, backend='gloo')


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


class _Shared(Exception):  # noqa: N818  only inside of :func:`together`
    """Carries an error that is the same in all processes."""

    def __init__(self, error: UserError) -> None:
        super().__init__(str(error))
        self.error = error


@lost_processes_named()
def agree(
    error: UserError | None = None, group: dist.ProcessGroup | None = None, number: int = 0
) -> int:
    """Return the largest ``number`` of all processes, or stop all of them at an ``error`` of any.

    All processes call it before every exchange of data inside :func:`together`. A process that
    cannot continue calls it instead of the exchange, so no process waits for one that has left.
    """
    largest = torch.tensor([error is not None, number], dtype=torch.long)
    all_reduce(largest, 'max', group)
    if not largest[0]:
        return int(largest[1])
    problem = None if error is None else str(error)
    place = f'process {get_rank(group) + 1} on {gethostname()}'
    problems = all_gather_object((place, problem), group)
    if error is None or any(other != problem for _, other in problems):
        place, problem = next(pair for pair in problems if pair[1] is not None)
        error = UserError(f'{place}: {problem}')
    raise _Shared(error)


@contextmanager
def together(group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Raise a UserError of one process in the ``with`` block in all processes.

    All processes leave the block together. Inside it they have to make the same exchanges, each
    after :func:`agree`. An error of another type ends the process, and the others notice its end.
    """
    try:
        problem = None
        try:
            yield
        except ProcessesError:  # the others raise it as well, or have ended
            raise
        except UserError as error:
            problem = error
        agree(problem, group)
    except _Shared as shared:
        raise shared.error from None


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
    agree(None, group)
    with lost_processes_named():
        everyone = all_gather_object((gethostname(), own), group)
    host, first = everyone[0]
    differences = []
    for name in dict.fromkeys(name for _, other in everyone for name in other):
        for number, (other_host, other) in enumerate(everyone, 1):
            if other.get(name) != first.get(name):
                pair = (one_line(one.get(name, 'missing'), 80) for one in (first, other))
                differences.append(
                    f'{name} is {next(pair)} in process 1 on {host} and {next(pair)} in process '
                    f'{number} on {other_host}'
                )
                break
    if not differences:
        return
    more = len(differences) - MAX_NAMED
    named = '; '.join(differences[:MAX_NAMED]) + (f'; and {more} more' if more > 0 else '')
    raise ProcessesError(
        f'{about}{": " if about else ""}the processes differ: {named}: start all of them with '
        'the same command, files and versions'
    )


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
