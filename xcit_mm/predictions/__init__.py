"""What a detector or segmentor predicts: objects or labels, their classes, and pictures of them."""

from .results import SCORE_THR, Detections, Segmentation

__all__ = ['SCORE_THR', 'Detections', 'Segmentation']
