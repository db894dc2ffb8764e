"""The cache of downloaded checkpoints: each is complete or absent."""

from functools import partial
from hashlib import sha256
from pathlib import Path

from filelock import FileLock
from mmengine.runner.checkpoint import _get_mmengine_home

from ...base.errors import UserError
from ...base.files import valid_name, writing_to
from ...base.http import fetch

START = 16  # bytes that show what a file is
ZIP_START = b'PK'  # of a file of torch.save
PICKLE_START = b'\x80'  # of a file of torch.save before PyTorch 1.6


def download(url: str, otherwise: str = '') -> Path:
    """Download a checkpoint into mmengine's cache, once, and return its path.

    Processes that ask for the same file wait for the first one. An interrupted download is resumed
    if the server allows it. ``otherwise`` is the end of the hint if the download fails.
    """
    target = cache_path(url)
    hint = (
        f'download it on another machine and save it as {target}, or name the local file{otherwise}'
    )
    with writing_to(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_file():
            with FileLock(f'{target}.lock'):
                if not target.is_file():
                    fetch(url, target, partial(_require_checkpoint, url), hint=hint)
    return target


def cache_path(url: str) -> Path:
    """Return where :func:`download` keeps the file of a URL."""
    digest = sha256(url.encode()).hexdigest()[:16]
    name = valid_name(url.partition('?')[0].rpartition('/')[2][-100:])
    return Path(_get_mmengine_home(), 'checkpoints', f'{digest}_{name}')


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
