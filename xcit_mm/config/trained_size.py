"""The size of the images that a config trains on."""

from collections.abc import Iterator
from typing import Any

from mmengine.config import Config

from .streaming import is_streamed
from .tree import class_name, split_datasets, typed_nodes

SIZING = ('Resize', 'DraftResize', 'RandomResize', 'RandomChoiceResize', 'RandomCrop')
NAMES = ('crop_size', 'scale', 'scales')  # of their arguments


def trained_size(cfg: Config) -> tuple[int, int] | None:
    """Return the longer and the shorter side of the images that a config trains on, in pixels.

    This is the window of scenes, or the largest size of the last crop or resize in the pipeline,
    without ``ratio_range``. None: the config does not say, or streams whole images in training.
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
        for sizes in ([*_pairs(node[name])] for name in names if name in node):
            if sizes:  # not shares of the image, or None
                yield max(sizes)


def _pairs(value: Any) -> Iterator[tuple[int, int]]:
    """Yield the longer and the shorter side of each size in an argument: sides or pairs of them."""
    if isinstance(value, int):
        yield value, value
    elif isinstance(value, (list, tuple)) and [*map(type, value)] == [int, int]:
        yield max(value), min(value)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _pairs(inner)
