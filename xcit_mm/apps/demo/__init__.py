"""A page in the browser to try detectors and segmentors on."""

from ...base.environment import require

require('gradio')

from .models import OfferedModels, find_models  # noqa: E402
from .server import serve, served  # noqa: E402

__all__ = ['OfferedModels', 'find_models', 'serve', 'served']
