"""Models of mmdet and mmseg that compute the same in fewer operations, or in 16 bits."""

from .fused_copy import FusedCopy, fuse, in_dtype
from .precision import widened_outputs

__all__ = ['FusedCopy', 'fuse', 'in_dtype', 'widened_outputs']
