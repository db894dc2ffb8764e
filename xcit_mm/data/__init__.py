"""Data: datasets, their import and their checks, and transforms."""

# Registered with mmengine when they are imported.
from .transforms import (  # noqa: F401
    draft_resize,
    height_labels,
    label_images,
    multiband,
)
