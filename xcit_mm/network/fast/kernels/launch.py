"""The launch of a kernel: on the device of its tensors, and only if there is something to compute.

Functions that launch kernels allocate their results from shapes alone. So they also run on fake
tensors (``torch._subclasses.FakeTensorMode``), which have shapes and devices, but no values.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import triton
from torch import Tensor
from torch._subclasses import FakeTensor
from triton.compiler.errors import CompilationError
from triton.runtime import KernelInterface

from ....base.errors import printable

# The names of arguments that depend on the sizes of images and batches. One compiled kernel serves
# all of them. Triton would compile another one for multiples of 16, which gains nothing here: the
# number of channels is such a multiple anyway.
SIZES = 'B', 'N', 'H', 'W', 'T', 'P', 'P1', 'P2', 'rows', 'share', 'parts', 'terms'


def kernel(function: Callable[..., None]) -> triton.JITFunction:
    """Make a function a kernel that is compiled once for all sizes."""
    return triton.jit(function, do_not_specialize=SIZES)


class KernelError(RuntimeError):
    """A kernel cannot be compiled or launched here. The message names the kernel and the reason."""


def launch(
    kernel: KernelInterface, grid: tuple[int, ...], *args: Tensor | float | None, **options: Any
) -> None:
    """Launch a kernel; do nothing if the grid is empty or an argument is a fake tensor.

    Args:
        kernel: A function decorated with :func:`kernel` or ``triton.jit``.
        grid: Number of programs along up to three axes. The second and third axis are limited to
            65,535.
        args: The arguments of the kernel. All tensors are on one device, which need not be the
            current one.
        options: Constants of the kernel by name, ``num_warps`` and ``num_stages``.

    Raises:
        KernelError: If Triton, its compilers or the driver reject the kernel.
    """
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    if 0 in grid or any(isinstance(t, FakeTensor) or t.is_meta for t in tensors):
        return
    device = tensors[0].device
    is_current = device.type != 'cuda' or device.index == torch.cuda.current_device()
    try:
        with nullcontext() if is_current else torch.cuda.device(device):
            # Products and sums may be fused, which is no longer Triton's default from 3.10 on.
            kernel[grid](*args, enable_fp_fusion=True, **options)
    except Exception as error:  # each layer below raises its own, from OSError to ValueError
        raise KernelError(f'kernel {kernel.__name__} cannot run: {_reason(error)}') from error


def _reason(error: BaseException) -> str:
    while isinstance(error, CompilationError) and error.__cause__ is not None:
        error = error.__cause__  # an error inside a function that the kernel calls
    lines = str(error).strip().splitlines() or ['']
    # Triton quotes the source of the kernel first.
    line = lines[-1 if isinstance(error, CompilationError) else 0]
    return printable(f'{type(error).__name__}: {line}')
