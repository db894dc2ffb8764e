"""Heads of mmdet's detectors whose losses are computed for all levels and images at once.

mmdet computes targets image by image and losses level by level, and waits for the GPU wherever the
size of a tensor depends on values. The classes here have tensors of fixed sizes with a mask of what
is valid. They compute what mmdet's classes compute, and leave to them what they cannot do.
"""
