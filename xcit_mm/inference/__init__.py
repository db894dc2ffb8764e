"""From a config and a checkpoint to predictions, pictures of them and files."""

from ..predictions import Detections, Segmentation
from .model import Model, load_model

__all__ = ['Detections', 'Model', 'Segmentation', 'load_model']
