"""Evaluation of the features of a checkpoint with k-NN and a linear classifier."""

from .report import report_probe

__all__ = ['report_probe']
