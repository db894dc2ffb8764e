"""What a detector or segmentor predicts: objects or labels, their classes, and pictures of them."""

from .results import Detections, Segmentation

__all__ = ['Detections', 'Segmentation']
