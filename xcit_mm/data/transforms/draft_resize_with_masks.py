"""Resizing of images with objects that were decoded at a fraction of their size."""

from mmdet.datasets.transforms import Resize
from mmdet.registry import TRANSFORMS

from .draft_resize import FromWholeSize


@TRANSFORMS.register_module(name='DraftResize')
class DraftResizeWithMasks(FromWholeSize, Resize):
    """mmdet's ``Resize`` after ``LoadImage(draft=...)``; it has its arguments."""
