"""A trial of the models of mmdet and mmseg on this machine: ``tools/zoo.py``."""

from .survey import survey

__all__ = ['survey']
