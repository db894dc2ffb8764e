"""The XCiT backbone and its layers."""

from .preprocessor import MultibandPreprocessor
from .xcit import XCiT

__all__ = ['MultibandPreprocessor', 'XCiT']
