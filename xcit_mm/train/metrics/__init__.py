"""Metrics of objects, labels, heights, panoptic segments and classes."""
