"""Images that do not fit into memory, computed so that each pixel attends to the whole image."""

from .stream import stream, stream_backward
from .training import shared_images

__all__ = ['shared_images', 'stream', 'stream_backward']
