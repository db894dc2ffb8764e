"""From a config and a checkpoint to predictions, pictures of them and files."""

from .detections import Detections
from .model import Model, load_model
from .segmentation import Segmentation

__all__ = ['Detections', 'Model', 'Segmentation', 'load_model']
