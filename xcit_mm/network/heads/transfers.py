"""Copies between the CPU and the GPU that wait as little as possible."""

from typing import Any

import torch
from torch import Tensor


def to_device(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return numbers as a tensor on a device; the copy to a GPU runs beside Python."""
    tensor = torch.tensor(values, dtype=dtype)
    if device.type != 'cuda':
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
