"""Models as ONNX files for images of any size."""

from .onnx_file import PARTS, Exported, export_onnx

__all__ = ['PARTS', 'Exported', 'export_onnx']
