"""Operators with the values of the layers they replace, at less arithmetic and memory."""

from .recompute import recompute
from .xca import xca

__all__ = ['recompute', 'xca']
