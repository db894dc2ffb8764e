"""Download checkpoints: whole in the cache, or not there."""

from functools import partial
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock
from mmengine.runner.checkpoint import _get_mmengine_home

from ..errors import UserError, reason
from ..http import UnreachableError, fetch

START = 16  # bytes that show what a file is
ZIP_START = b'PK'  # of torch.save
PICKLE_START = b'\x80'  # of torch.save before PyTorch 1.6


def is_url(path: str) -> bool:
    """Return whether a checkpoint is named by a web address."""
    return path.startswith(('http://', 'https://'))


def download(url: str) -> Path:
    """Download a checkpoint into mmengine's cache, once.

    Processes that ask for the same file wait for the first one. An interrupted download is resumed
    if the server allows it.

    Args:
        url: http:// or https://.

    Returns:
        Its path below ``$MMENGINE_HOME/checkpoints`` (``~/.cache/mmengine/checkpoints``).

    Raises:
        UnreachableError: If the network or the server is down.
        UserError: If there is no such file, it is not a checkpoint, or the connection broke.
    """
    target = cache_path(url)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_file():
            with FileLock(f'{target}.lock'):
                if not target.is_file():
                    fetch(url, target, partial(_require_checkpoint, url))
    except UnreachableError as error:
        raise UnreachableError(
            f'{error}; download it on another machine and name the local file, or save it as '
            f'{target}'
        ) from None
    except OSError as error:
        raise UserError(f'{url} cannot be kept as {target} ({reason(error)})') from None
    return target


def cache_path(url: str) -> Path:
    """Return where :func:`download` keeps the file of a URL: by server, path and query.

    Raises:
        UserError: If it is not the URL of a file.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UserError(f'{url} is not a web address ({error})') from None
    folders = [name for name in parts.path.split('/') if name not in ('', '.', '..')]
    if not parts.netloc or not folders:
        raise UserError(f'{url} is not the web address of a file')
    if parts.query:
        folders[-1] += f'.{sha256(parts.query.encode()).hexdigest()[:16]}'
    return Path(_get_mmengine_home(), 'checkpoints', parts.netloc, *folders)


def is_safetensors(start: bytes) -> bool:
    """Return whether a file that starts like this has a JSON header after its length in 8 bytes.

    The ninth byte of a file of ``torch.save`` is never a brace.
    """
    return start[8:9] == b'{'


def _require_checkpoint(url: str, file: Path) -> None:
    with file.open('rb') as stream:
        start = stream.read(START)
    if not (start.startswith((ZIP_START, PICKLE_START)) or is_safetensors(start)):
        raise UserError(f'{url} is not a checkpoint: what the server sent starts with {start!r}')
