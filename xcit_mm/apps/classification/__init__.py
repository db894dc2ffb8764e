"""Classes of images by timm's XCiT, and its accuracy compared with the published one."""

from ...network.weights.timm_classifier import load_classifier
from .classifier import Classifier, Guess

__all__ = ['Classifier', 'Guess', 'load_classifier']
