"""Datasets and transforms of large images and of windows of them."""
