"""Images that do not fit into memory, computed so that each pixel attends to the whole image."""

from importlib import import_module

# Files of large images are opened without the passes over their tokens.
_LOADED_LATER = dict(
    stream='streamed_backbone', stream_backward='streamed_backbone', shared_images='training'
)

__all__ = ['shared_images', 'stream', 'stream_backward']


def __getattr__(name: str) -> object:
    if name in _LOADED_LATER:
        return getattr(import_module(f'.{_LOADED_LATER[name]}', __name__), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
