"""Exports for images of any size, to files for ONNX Runtime, OpenVINO and PyTorch.

``export`` writes a graph of :mod:`.graphs` in a format of :mod:`.formats` if the file computes what
PyTorch does (:mod:`.comparison`). ``export_folder`` adds a program that predicts without xcit_mm
(:mod:`.predict`). ``load_runtime`` loads a file, ``evaluate`` measures files.
"""

from .evaluation import Evaluated, evaluate
from .export import Exported, export
from .folder import export_folder
from .formats import load_runtime
from .settings import ExportSettings

__all__ = [
    'Evaluated',
    'ExportSettings',
    'Exported',
    'evaluate',
    'export',
    'export_folder',
    'load_runtime',
]
