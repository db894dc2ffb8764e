"""Operators that compute and keep less than the layers they stand for, with equal values."""

from .mlp import gelu_, mlp, token_chunks
from .recompute import recompute
from .xca import xca

__all__ = ['gelu_', 'mlp', 'recompute', 'token_chunks', 'xca']
