"""Linear layers with GELU in one operation."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ...device import multiplies_bfloat16
from .tracing import computed_dtype, is_intercepted


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute GELU of a linear layer, without a graph for gradients.

    On a CPU that multiplies bfloat16, GELU alone takes as long as the product. oneDNN applies it
    to the float32 sums before they are rounded and stored.

    Shape:
        x: (..., C), weight: (D, C), bias: (D,). Output: (..., D).
    """
    dtype = computed_dtype(x)
    can_fuse = x.device.type == 'cpu' and dtype == torch.bfloat16 and not is_intercepted()
    if can_fuse and multiplies_bfloat16():
        x, weight, bias = (t.to(dtype) for t in (x, weight, bias))
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, 'gelu', [], 'none')
    return torch.ops.aten.gelu_(F.linear(x, weight, bias))
