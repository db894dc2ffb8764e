"""Trained models, their inputs, and the files of their predictions."""

from ..predictions import Detections, Segmentation
from .model import Model, load_model

__all__ = ['Detections', 'Model', 'Segmentation', 'load_model']
