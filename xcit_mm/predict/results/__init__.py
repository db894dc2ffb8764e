"""What a model predicts: objects, labels or heights, their classes, and pictures of them."""

from .heights import Heights
from .results import SCORE_THR, Detections
from .segmentation import Segmentation

__all__ = ['SCORE_THR', 'Detections', 'Heights', 'Segmentation']
