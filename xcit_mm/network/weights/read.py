"""Checkpoint files as tensors, without running code that is in them."""

import io
import threading
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import torch
from torch import Tensor

from ...base.environment import require
from ...base.errors import DependencyError, UserError, looked_in, reason
from ...base.files import open_regular
from .cache import PICKLE_START, START, download, is_safetensors, is_url
from .hub import find_file, is_folder
from .pickles import ALIAS, VALIDATED, UnreadableError, checked_pickle

TIMM = 'timm://'
OLD_FORMAT = (
    'it is not a zip archive, the format since PyTorch 1.6; if you trust its source, '
    'write it again with torch.save(torch.load(OLD, weights_only=False), NEW), or pass '
    '--trust-checkpoint (trusted=True in init_cfg)'
)
_lock = threading.RLock()  # for torch.serialization.safe_globals, which holds for the process


def read_checkpoint(path: str | Path, map_location: Any = 'cpu', trusted: bool = False) -> Any:
    """Read a checkpoint without running code that is in it.

    Args:
        path: A file of ``torch.save`` or safetensors, its http(s) URL, ``timm://`` and the name of
            a pretrained XCiT of timm, ``hf://owner/name``, or a folder with ``model.safetensors``.
        map_location: The device of the tensors, as in ``torch.load``; None: the CPU.
            The tensors of safetensors files and of timm are on the CPU.
        trusted: Allow every class, which runs any code that is in the file. Damage is an error
            either way.

    Raises:
        UserError: If the file does not exist, is damaged, is not a checkpoint, or needs a class
            that is not allowed.
    """
    path = str(path)
    if path.startswith(TIMM):
        return _read_timm(path)
    file = _find(path, trusted)
    try:
        return _read_file(file, map_location or 'cpu', trusted)
    except DependencyError:
        raise
    except UnreadableError as error:
        why = str(error)
    except FileNotFoundError:
        why = f'it does not exist{looked_in(file)}'
    except OSError as error:
        why = reason(error)
    except Exception as error:  # from zipfile, torch.load, pickle or safetensors
        if isinstance(error, UnpicklingError):
            error = error.__context__ or error  # which PyTorch replaces by general advice
        why = f'it is cut off, damaged or not a checkpoint ({reason(error)})'
    cached = f' ({file}: delete it to download it again)' if is_url(path) else ''
    raise UserError(f'the checkpoint {path}{cached} cannot be read: {why}')


def _find(path: str, trusted: bool) -> Path:
    if is_url(path):
        return download(path)
    return find_file(path, trusted) if is_folder(path) else Path(path).expanduser()


def _read_file(file: Path, map_location: Any, trusted: bool) -> Any:
    with open_regular(file) as stream:
        start = stream.read(START)
    if not start:
        raise UnreadableError('it is empty')
    if start.lstrip().startswith(b'<'):
        raise UnreadableError('it is a web page, saved under this name')
    if is_safetensors(start):
        require('safetensors')
        from safetensors.torch import load_file

        return load_file(file)
    if start.startswith(PICKLE_START):
        if trusted:
            return torch.load(file, map_location=map_location, weights_only=False)
        raise UnreadableError(OLD_FORMAT)
    return _read_archive(file, map_location, trusted)


def _read_archive(file: Path, map_location: Any, trusted: bool) -> Any:
    records = read_records(file)
    if not trusted:
        sizes = {name: len(content) for name, content in records.items()}
        records['data.pkl'] = checked_pickle(records['data.pkl'], sizes)
    # PyTorch reads a copy: in a crafted file it could find other records than Python.
    copy = io.BytesIO()
    with ZipFile(copy, 'w') as archive:
        for name in list(records):
            archive.writestr(f'checkpoint/{name}', records.pop(name))
    copy.seek(0)
    stand_ins = [(value, ALIAS + name) for name, value in VALIDATED.items()]
    with _lock, torch.serialization.safe_globals(stand_ins):
        return torch.load(copy, map_location=map_location, weights_only=not trusted)


def read_records(file: Path) -> dict[str, bytes]:
    """Read the records of an archive, by name, and compare them with their checksums."""
    with ZipFile(file) as archive:
        entries = archive.infolist()
        folders = {entry.filename.partition('/')[0] for entry in entries}
        records = {entry.filename.partition('/')[2].lower(): entry for entry in entries}
        if (
            len(folders) != 1
            or len(records) < len(entries)
            or sum(entry.file_size for entry in entries) > file.stat().st_size
            or any(entry.is_dir() or entry.compress_type != ZIP_STORED for entry in entries)
        ):
            raise BadZipFile('its records are not laid out as PyTorch writes them')
        return {name: archive.read(entry) for name, entry in records.items()}


def _read_timm(path: str) -> dict[str, Tensor]:
    require('timm')
    import timm

    name = path.removeprefix(TIMM)
    if name not in (*timm.list_models('xcit_*'), *timm.list_pretrained('xcit_*')):
        raise UserError(
            f"{path}: timm has no XCiT of this name; timm.list_pretrained('xcit_*') lists them, "
            'such as xcit_small_12_p8_384.fb_dist_in1k'
        )
    try:
        return timm.create_model(name, pretrained=True).state_dict()
    except Exception as error:  # from the network, the client of the hub, or timm
        raise UserError(
            f'{path} cannot be downloaded ({reason(error)}); download it on another machine and '
            'name the local file'
        ) from None
