"""Models as files for ONNX Runtime, OpenVINO and PyTorch, for images of any size."""

from .evaluation import Evaluated, evaluate
from .export import FORMATS, PARTS, PRECISIONS, Exported, export
from .runtime import load_runtime

__all__ = [
    'FORMATS',
    'PARTS',
    'PRECISIONS',
    'Evaluated',
    'Exported',
    'evaluate',
    'export',
    'load_runtime',
]
