"""The size of the images that a config trains on."""

from collections.abc import Iterator

import numpy as np
from mmengine.config import Config

from .streaming import is_streamed
from .tree import class_name, split_datasets, typed_nodes

SIZING = ('Resize', 'DraftResize', 'RandomResize', 'RandomChoiceResize', 'RandomCrop')
NAMES = ('crop_size', 'scale', 'scales')  # of their arguments


def trained_size(cfg: Config) -> tuple[int, int] | None:
    """Return the longer and the shorter side of the images that a config trains on, in pixels.

    It is the window of scenes, or what the last crop or resize of the training pipeline returns, at
    most. None: the config does not say, or streams whole images in training.
    """
    if is_streamed(cfg, 'train'):
        return None
    sizes = (size for dataset in split_datasets(cfg, 'train') for size in [*_sizes(dataset)][-1:])
    return max(sizes, default=None)


def _sizes(dataset: dict) -> Iterator[tuple[int, int]]:
    """Yield the sizes that a dataset and the transforms of its pipeline set, in their order."""
    if isinstance(window := dataset.get('window'), int):
        yield window, window
    for _, node in typed_nodes(dataset.get('pipeline') or ()):
        names = NAMES if class_name(node['type']) in SIZING else ()
        for values in (np.atleast_2d(node[name]) for name in names if name in node):
            if values.dtype.kind == 'i':  # not a share of the image, or None
                yield int(values.max()), int(values.min(1).max())
