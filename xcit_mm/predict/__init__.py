"""Trained models, their inputs, and the files of their predictions."""

from .model import Model, load_model
from .results import Detections, Segmentation

__all__ = ['Detections', 'Model', 'Segmentation', 'load_model']
