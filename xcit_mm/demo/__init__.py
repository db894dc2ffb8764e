"""A page in the browser to try detectors and segmentors on."""

from ..environment import require

require('gradio')

from .models import OfferedModels, find_models  # noqa: E402
from .server import MAX_UPLOAD, serve, served  # noqa: E402

__all__ = ['MAX_UPLOAD', 'OfferedModels', 'find_models', 'serve', 'served']
