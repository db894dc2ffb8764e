"""A block and a stack of convolutions in the kernels of a GPU."""

from torch import Tensor, nn


def can_compute(module: nn.Module, x: Tensor) -> bool:
    return False
