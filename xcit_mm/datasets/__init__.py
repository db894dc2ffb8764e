"""Datasets: drawing, downloading, converting, reading and checking them."""

from . import decode, height_labels, multiband  # noqa: F401  registers the image loaders of our configs
