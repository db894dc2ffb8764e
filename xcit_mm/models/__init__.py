"""The XCiT backbone and its layers."""

from .image_preprocessor import ImagePreprocessor
from .image_xcit import ImageXCiT
from .preprocessor import MultibandPreprocessor
from .xcit import XCiT

__all__ = ['ImagePreprocessor', 'ImageXCiT', 'MultibandPreprocessor', 'XCiT']
