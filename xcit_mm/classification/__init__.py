"""timm's XCiT classifier with the weights of a checkpoint, and whether these are the right ones."""

from .classifier import Accuracy, Classifier, Guess
from .folder import labelled_images
from .loading import load_classifier

__all__ = ['Accuracy', 'Classifier', 'Guess', 'labelled_images', 'load_classifier']
