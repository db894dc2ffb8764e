"""From a config and a checkpoint to predictions, pictures of them and files."""

from .model import Model, load_model
from .predictions import Detections, Segmentation

__all__ = ['Detections', 'Model', 'Segmentation', 'load_model']
