"""Checkpoints from the web: whole in the cache, or not there at all."""

from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from filelock import FileLock
from mmengine.runner.checkpoint import _get_mmengine_home

from ..errors import UserError, reason
from ..http import UnreachableError, fetch

START = 16  # bytes that tell what a file is
ZIP_START = b'PK'  # of torch.save
PICKLE_START = b'\x80'  # of torch.save before PyTorch 1.6: read only where it is trusted


def is_url(path: str) -> bool:
    """Whether a checkpoint is named by a web address."""
    return path.startswith(('http://', 'https://'))


def download(url: str) -> Path:
    """Fetch a checkpoint into mmengine's cache, once.

    Processes that ask for the same file wait for the first one. What is cached under a name
    came from that address and is whole; an interrupted download goes on where the server allows it.

    Args:
        url: http:// or https://.

    Returns:
        Its place below ``$MMENGINE_HOME/checkpoints`` (``~/.cache/mmengine/checkpoints``).

    Raises:
        UnreachableError: If the network or the server is away.
        UserError: If there is no such file at the address, it is no checkpoint, or the
            connection broke off.
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
    try:
        fetch(url, target, partial(_require_checkpoint, url))
    except UnreachableError as error:
        raise UnreachableError(
            f'{error}; fetch it on another machine and name the file instead of the address, or '
            f'put it at {target}'
        ) from None


def _require_checkpoint(url: str, file: BinaryIO) -> None:
    start = file.read(START)
    if not (start.startswith((ZIP_START, PICKLE_START)) or is_safetensors(start)):
        raise UserError(f'{url} is no checkpoint: what the server sent begins with {start!r}')
