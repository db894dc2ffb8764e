"""How well the features of a checkpoint separate classes: k-NN and a linear classifier."""

from .report import report_probe

__all__ = ['report_probe']
