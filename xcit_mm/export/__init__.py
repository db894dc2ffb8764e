"""Exports for images of any size, to files for ONNX Runtime, OpenVINO and PyTorch.

``export`` writes a graph of :mod:`.graphs` in a format of :mod:`.formats` if the file computes what
PyTorch does (:mod:`.comparison`). ``load_runtime`` loads a file, ``evaluate`` measures files.
"""

from .choices import FORMATS, PARTS, PRECISIONS
from .evaluation import Evaluated, evaluate
from .export import Exported, export
from .formats import load_runtime

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
