"""Datasets: drawing, downloading, converting, reading and checking them."""

from . import decode, multiband  # noqa: F401  registers the image loaders of our configs
