"""Process images that do not fit into memory, with each pixel attending to the whole image."""

from .stream import stream

__all__ = ['stream']
