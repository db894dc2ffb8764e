"""Descriptors of images, and search with them."""
