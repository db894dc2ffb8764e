"""Classify images with timm's XCiT and compare its accuracy with the published one."""

from .classifier import Classifier, Guess
from .loading import load_classifier

__all__ = ['Classifier', 'Guess', 'load_classifier']
