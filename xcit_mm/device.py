"""Choose the device that a model runs on, and give memory back."""

import ctypes
import gc
import os
import sys

import torch

from .errors import ArgumentError, reason


def choose_device(name: str | None) -> torch.device:
    """Return the device 'cpu', 'cuda' or 'cuda:1'; for None a GPU if there is one, or the CPU.

    Raises:
        ArgumentError: If the device cannot be used.
    """
    if name is None:
        if not torch.cuda.is_available():
            return torch.device('cpu')
        return torch.device('cuda', int(os.environ.get('LOCAL_RANK', '0')))  # of torchrun
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        raise ArgumentError(f'device={name!r} cannot be used ({reason(error)}); use cpu') from None
    return device


def release_memory() -> None:
    """Return freed memory to the system, which others need more than this process."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if sys.platform == 'linux' and hasattr(ctypes.CDLL(None), 'malloc_trim'):
        ctypes.CDLL(None).malloc_trim(0)
