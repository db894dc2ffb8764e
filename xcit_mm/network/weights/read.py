"""Checkpoint files as tensors, without running code that is in them."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from ...base.environment import require
from ...base.errors import DependencyError, UserError, list_folder_hint, reason
from ...base.files import open_regular
from ...base.http import is_url
from ...base.shipped import is_folder
from .cache import PICKLE_START, START, ZIP_START, download, is_safetensors
from .hub import find_file
from .pickles import load_safely

TIMM = 'timm://'
TRUST = 'if you trust its source, pass --trust-checkpoint (trusted=True in init_cfg)'


def read_checkpoint(path: str | Path, map_location: Any = 'cpu', trusted: bool = False) -> Any:
    """Read a checkpoint without running code that is in it.

    Args:
        path: A file of ``torch.save`` or safetensors, its http(s) URL, ``timm://`` and the name of
            a pretrained XCiT of timm, ``hf://owner/name``, or a folder with ``model.safetensors``.
        map_location: The device of the tensors, as in ``torch.load``; None: the CPU.
            The tensors of safetensors files and of timm are on the CPU.
        trusted: Allow every class, which runs any code that is in the file.

    Raises:
        UserError: If the file does not exist, is damaged, is not a checkpoint, or needs a class
            that is not allowed.
    """
    path = str(path)
    if path.startswith(TIMM):
        return _read_timm(path)
    if is_url(path):
        file = download(path)
    else:
        file = find_file(path, trusted) if is_folder(path) else Path(path).expanduser()
    try:
        with open_regular(file) as stream:
            start = stream.read(START)
        return _read_file(file, start, map_location or 'cpu', trusted)
    except DependencyError:
        raise
    except FileNotFoundError:
        why = f'it does not exist{list_folder_hint(file)}'
    except Exception as error:  # of the system, torch.load, pickle or safetensors
        why = f'it is cut off, damaged or not a checkpoint ({reason(error)})'
        if isinstance(error, UnpicklingError) and not trusted:
            # PyTorch's own message is advice, and so is the second sentence of its cause.
            cause = reason(error.__context__ or error).partition('. ')[0]
            why = (
                f'it is damaged or needs more than weights, which could run code ({cause}): {TRUST}'
            )
    cached = f' ({file}: delete it to download it again)' if is_url(path) else ''
    raise UserError(f'the checkpoint {path}{cached} cannot be read: {why}')


def _read_file(file: Path, start: bytes, map_location: Any, trusted: bool) -> Any:
    if is_safetensors(start):
        require('safetensors')
        from safetensors.torch import load_file

        return load_file(file)
    if not start.startswith((ZIP_START, PICKLE_START)):
        raise ValueError(f'it starts with {start!r}')
    # Not mapped into memory: whoever writes the tensors to the same file would lose them.
    if trusted:
        return torch.load(file, map_location=map_location, weights_only=False)
    return load_safely(file, map_location)


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
