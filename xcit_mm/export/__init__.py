"""Export models for images of any size to files for ONNX Runtime, OpenVINO and PyTorch."""

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
