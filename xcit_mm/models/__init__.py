"""The XCiT backbone and its layers."""

from .multiband import MultibandPreprocessor
from .xcit import XCiT

__all__ = ['MultibandPreprocessor', 'XCiT']
