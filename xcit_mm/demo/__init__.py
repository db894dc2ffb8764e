from .choices import find_models
from .page import MAX_UPLOAD, DemoPage
from .server import serve, served

__all__ = ['MAX_UPLOAD', 'DemoPage', 'find_models', 'serve', 'served']
