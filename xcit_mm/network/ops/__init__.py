"""The operators of the network: cross-covariance attention in two forms, and moments of tokens."""

from .xca import xca

__all__ = ['xca']
