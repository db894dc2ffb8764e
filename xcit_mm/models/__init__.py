"""The XCiT backbone and its layers."""

from .xcit import XCiT

__all__ = ['XCiT']
