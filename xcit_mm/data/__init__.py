"""Datasets: drawing, downloading, converting, reading and checking them."""

from .transforms import (  # noqa: F401  registers the image loaders of our configs, and the resize of one
    draft_resize,
    height_labels,
    label_images,
    multiband,
)
