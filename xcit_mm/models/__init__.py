"""The XCiT backbone and its layers."""

from .image_xcit import ImageXCiT
from .preprocessor import MultibandPreprocessor
from .xcit import XCiT

__all__ = ['ImageXCiT', 'MultibandPreprocessor', 'XCiT']
