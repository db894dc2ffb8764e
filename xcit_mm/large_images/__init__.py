"""Images that do not fit into memory: each pixel still attends to the whole image."""

from .stream import stream

__all__ = ['stream']
