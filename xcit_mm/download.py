"""Files from the web: whole in the cache, or not there at all."""

from hashlib import sha256
from http.client import HTTPException, InvalidURL
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen
from zipfile import is_zipfile

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
START = 16  # bytes that tell what a file is
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
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_file():
            with FileLock(f'{target}.lock'):
                if not target.is_file():
                    _fetch(url, target)
    except OSError as error:
        raise UserError(f'{url} cannot be kept as {target} ({reason(error)})') from None
    return target


def cache_path(url: str) -> Path:
    """Where :func:`download` keeps the file of an address: by server, path and query.

    Raises:
        UserError: If it is no address of a file.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UserError(f'{url} is no web address ({error})') from None
    folders = [name for name in parts.path.split('/') if name not in ('', '.', '..')]
    if not parts.netloc or not folders:
        raise UserError(f'{url} is no web address of a file')
    if parts.query:
        folders[-1] += f'.{sha256(parts.query.encode()).hexdigest()[:16]}'
    return Path(_get_mmengine_home(), 'checkpoints', parts.netloc, *folders)


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
    except InvalidURL as error:
        raise UserError(f'{url} is no web address ({error})') from None
    except (HTTPException, ConnectionError) as error:
        raise UserError(f'{url}: the connection broke off ({reason(error)}); try again') from None


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
        start = file.read(START)
        if not (start.startswith(TORCH_STARTS) or is_safetensors(start)):
            raise UserError(f'{url} is no checkpoint: what the server sent begins with {start!r}')
        if size is None and not is_zipfile(file):  # which has its directory at the end
            raise UserError(
                f'{url}: the server does not say how long the file is, so it may be cut off; fetch '
                'it yourself and name the file'
            )


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
