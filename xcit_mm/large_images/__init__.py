"""Process images that do not fit into memory, with each pixel attending to the whole image."""

from .stream import stream
from .training import shared_images

__all__ = ['shared_images', 'stream']
