"""Predictions for images and videos, as ``tools/infer.py`` calls them."""
