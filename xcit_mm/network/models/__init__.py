"""Models of images, and parts of models of mmdet and mmseg, around the network."""

from .image_preprocessor import ImagePreprocessor
from .image_xcit import ImageXCiT
from .multiband_preprocessor import MultibandPreprocessor

__all__ = ['ImagePreprocessor', 'ImageXCiT', 'MultibandPreprocessor']
