"""Datasets: drawing, downloading, converting, reading and checking them."""

from . import height_labels, label_images, multiband  # noqa: F401  registers the image loaders of our configs
