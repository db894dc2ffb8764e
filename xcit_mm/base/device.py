"""The device and the dtype that a model computes with, copies to it and back, and freed memory."""

import ctypes
import gc
import os
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from .errors import ArgumentError, reason

DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16, 'float16': torch.float16}


def choose_device(name: str | None) -> torch.device:
    """Return 'cpu', 'cuda', 'cuda:1' or 'mps' as a device; for None a GPU, if any, or the CPU.

    Raises:
        ArgumentError: If the device cannot be used.
    """
    if name is None:
        if torch.cuda.is_available():
            return torch.device('cuda', int(os.environ.get('LOCAL_RANK', '0')))  # set by torchrun
        return torch.device('mps' if torch.backends.mps.is_available() else 'cpu')
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        remedy = 'did you mean cuda?' if name.lower().startswith('gpu') else 'use cpu'
        raise ArgumentError(f'device={name!r} cannot be used ({reason(error)}); {remedy}') from None
    return device


def choose_dtype(name: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """Return one of ``DTYPES``, by its name or itself; for 'auto' the fastest on a device.

    'auto' is a dtype of 16 bits if the device multiplies matrices in it, and float32 otherwise.
    None is 'auto' on a GPU and 'float32' on a CPU.

    Raises:
        ArgumentError: If the name is not one of these.
    """
    if isinstance(name, torch.dtype):
        name = dtype_name(name)
    if name is None:
        name = 'float32' if device.type == 'cpu' else 'auto'
    if name == 'auto':
        return _fastest_dtype(device)
    if name not in DTYPES:
        raise ArgumentError(f'dtype={name!r} is not one of {(*DTYPES, "auto")}')
    return DTYPES[name]


def _fastest_dtype(device: torch.device) -> torch.dtype:
    if device.type == 'cuda':
        is_native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if is_native else torch.float16
    is_native = device.type == 'cpu' and multiplies_bfloat16()
    return torch.bfloat16 if is_native else torch.float32


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without the prefix ``torch``."""
    return str(dtype).removeprefix('torch.')


@cache
def multiplies_bfloat16() -> bool:
    """Return whether the CPU has instructions for products of bfloat16 matrices."""
    checks = '_is_avx512_bf16_supported', '_is_amx_tile_supported'
    has_instructions = any(getattr(torch.cpu, name, bool)() for name in checks)
    return has_instructions and torch.backends.mkldnn.is_available()


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 for a device without it, such as Apple's GPUs."""
    return torch.float64 if device.type in ('cpu', 'cuda') else torch.float32


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the CPU whose copy to a GPU does not wait; for other devices, itself."""
    if device.type != 'cuda' or tensor.device.type != 'cpu' or tensor.is_pinned():
        return tensor
    # Tensor.pin_memory() would pin all that lies between the rows of a window.
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; the copy to a GPU does not wait until the GPU is idle."""
    return pinned(tensor, device).to(device, non_blocking=device.type == 'cuda')


def sent_back(tensor: Tensor) -> Callable[[], Tensor]:
    """Start to copy a tensor to the CPU, and return a function that waits for the copy."""
    if tensor.device.type != 'cuda':
        return tensor.cpu
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    is_done = torch.cuda.Event()
    is_done.record(torch.cuda.current_stream(tensor.device))

    def wait() -> Tensor:
        is_done.synchronize()
        return copy

    return wait


def release_memory() -> None:
    """Return freed memory to the operating system."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
    trim_memory()


def trim_memory() -> None:
    """Return freed memory that the C library keeps to the operating system."""
    trim = getattr(ctypes.CDLL(None), 'malloc_trim', None)  # of glibc
    if trim is not None:
        trim(0)
