"""Files from the web: whole in the cache, or not there at all."""

from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from filelock import FileLock
from mmengine.runner.checkpoint import _get_mmengine_home
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from .errors import UserError, reason
from .files import write_whole

TIMEOUT = 60  # seconds without a byte
CHUNK = 2**20  # bytes
# How a file of torch.save begins: a zip archive, or a pickle before PyTorch 1.6.
TORCH_STARTS = (b'PK\x03\x04', b'\x80')


class UnreachableError(UserError):
    """The network, or the server, is away."""


def is_url(path: str) -> bool:
    """Whether a checkpoint is named by a web address."""
    return path.startswith(('http://', 'https://'))


def download(url: str) -> Path:
    """Fetch a checkpoint into mmengine's cache, once.

    Processes that ask for the same file wait for the first one. What is cached under a name
    came from that address and is whole.

    Args:
        url: http:// or https://.

    Returns:
        Its place below ``$MMENGINE_HOME/checkpoints`` (``~/.cache/mmengine/checkpoints``).

    Raises:
        UnreachableError: If the network or the server is away.
        UserError: If there is no such file at the address, it is no checkpoint, or the
            connection broke off. Nothing is left in the cache then.
    """
    target = cache_path(url)
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f'{target}.lock'):
            if not target.is_file():
                _fetch(url, target)
    except OSError as error:
        raise UserError(f'{url} cannot be written to {target} ({reason(error)})') from None
    return target


def cache_path(url: str) -> Path:
    """Where :func:`download` keeps the file of an address: by server and path."""
    parts = urlsplit(url)
    name = parts.path.strip('/') + (f'?{parts.query}' if parts.query else '')
    return Path(_get_mmengine_home(), 'checkpoints', parts.netloc, name)


def is_safetensors(start: bytes) -> bool:
    """Whether a file that begins so is one: a JSON header behind its length in 8 bytes.

    In a file of ``torch.save`` that byte is never a brace.
    """
    return start[8:9] == b'{'


def _fetch(url: str, target: Path) -> None:
    remedy = (
        f'; fetch it on another machine and name the file instead of the address, or put it at '
        f'{target}'
    )
    try:
        with urlopen(Request(url, headers={'User-Agent': 'xcit_mm'}), timeout=TIMEOUT) as response:
            _save(response, url, target)
    except HTTPError as error:
        raise UserError(
            f'{url}: the server answers {error.code} {error.reason}; is the address right?'
        ) from None
    except (URLError, TimeoutError) as error:
        cause = getattr(error, 'reason', error)
        raise UnreachableError(f'{url} cannot be reached ({cause}){remedy}') from None
    except (HTTPException, ConnectionError) as error:
        raise UserError(f'{url}: the connection broke off ({reason(error)}){remedy}') from None
    except ValueError as error:  # of an address that is none
        raise UserError(f'{url} is no web address ({error})') from None


def _save(response, url: str, target: Path) -> None:
    length = response.headers.get('Content-Length')
    size = int(length) if length else None
    with write_whole(target, 'w+b') as file:
        _copy(response, file, target.name, size)
        if size is not None and file.tell() != size:
            raise UserError(
                f'{url}: the connection broke off after {file.tell()} of {size} bytes; try again'
            )
        file.seek(0)
        start = file.read(16)
        if not (start.startswith(TORCH_STARTS) or is_safetensors(start)):
            raise UserError(f'{url} is no checkpoint: what the server sent begins with {start!r}')


def _copy(response, file: BinaryIO, name: str, size: int | None) -> None:
    columns = (
        TextColumn('{task.description}'),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=size)
        while chunk := response.read(CHUNK):
            file.write(chunk)
            progress.advance(task, len(chunk))
