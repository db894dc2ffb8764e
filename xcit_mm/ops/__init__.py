"""Operators that compute and keep less than the layers they stand for, with equal values."""

from .mlp import gelu_, mlp, token_chunks
from .recompute import recompute
from .tracing import computed_dtype, is_captured, is_intercepted
from .xca import xca

__all__ = [
    'computed_dtype',
    'gelu_',
    'is_captured',
    'is_intercepted',
    'mlp',
    'recompute',
    'token_chunks',
    'xca',
]
