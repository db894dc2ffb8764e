"""The examples of each class in the images of a dataset, and the classes that have none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.logging import print_log

from ...base.errors import printable
from ...config.tree import typed_nodes
from ..transforms.decode import image_loader

OBJECTS, PIXELS, IMAGES = 'objects', 'pixels', 'images'
LABELS = ('LoadLabels', 'OpenLabels')  # the transforms that read label images
NUM_READ = 20  # label images read before a run; more are read if these hold fewer than two classes
MAX_NAMED = 10  # classes that a sentence names
NO_OBJECTS = (
    'none of the {number} images of {split} has an object: objects are missing, are all crowds '
    '(iscrowd), or their files were not found; tools/check_dataset.py CONFIG lists them all'
)
NO_PIXELS = (
    'no pixel of the {number} label images of {split} belongs to a class, because all are ignored: '
    '255 stands for pixels that are ignored, and reduce_zero_label=True also ignores 0 and counts '
    'the classes from 1'
)
ONE_CLASS = (
    'all labeled pixels of the {number} label images of {split} are {name}, and the others are '
    'ignored, so nothing can be learned: write the number of the class of each pixel, from 0 to '
    '{last}; a mask of 0 and 255 has to be written as 0 and 1, because 255 is ignored'
)


@dataclass(frozen=True)  # PyTorch would turn the arrays in a tuple into tensors
class Examples:
    """The numbers of examples in a set of images.

    Attributes:
        unit: What an example is: 'objects', 'pixels' or 'images'.
        counts: The number of examples of each class, (classes,).
        images: The number of images with each class, (classes,).
        around: The number of examples of all classes in the images with each class, (classes,).
        number: The number of images.
    """

    unit: str
    counts: np.ndarray
    images: np.ndarray
    around: np.ndarray
    number: int

    @classmethod
    def of(cls, unit: str, labels: Sequence[Sequence[int]], num_classes: int) -> 'Examples':
        """Count the labels of the examples of each image."""
        sizes = np.array([*map(len, labels)], int)
        flat = np.fromiter((label for of_image in labels for label in of_image), int)
        owners = np.repeat(np.arange(len(sizes)), sizes)
        image, label = np.divmod(np.unique(owners * num_classes + flat), num_classes)
        counts, images = (np.bincount(values, minlength=num_classes) for values in (flat, label))
        around = np.bincount(label, sizes[image], num_classes).astype(int)
        return cls(unit, counts, images, around, len(sizes))

    @classmethod
    def of_counts(cls, unit: str, counts: np.ndarray) -> 'Examples':
        """Return the examples of one image, given their number in each class."""
        has = (counts > 0).astype(np.int64)
        return cls(unit, counts, has, has * counts.sum(), 1)

    def __add__(self, other: 'Examples') -> 'Examples':
        pairs = ('counts', 'images', 'around', 'number')
        return Examples(self.unit, *(getattr(self, n) + getattr(other, n) for n in pairs))


class ExampleCounter:
    """Counts the examples of each class in an image, as the pipeline of a dataset reads them."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._num_classes = len((getattr(dataset, 'metainfo', None) or {}).get('classes') or ())
        transforms = getattr(getattr(dataset, 'pipeline', None), 'transforms', ())
        of_kind = {type(transform).__name__: transform for transform in transforms}
        self._open = of_kind.get('OpenImage')
        self._labels = next((of_kind[name] for name in LABELS if name in of_kind), None)

    def __call__(self, info: dict) -> Examples | None:
        """Count the examples of an image, or return None if the dataset has none to count."""
        counted = self.in_list(info)
        if counted is None and self._labels is not None and 'seg_map_path' in info:
            load = self._open or image_loader(self._dataset)
            counted = self.in_labels(self._labels(load(info)))
        return counted

    def in_list(self, info: dict) -> Examples | None:
        """Count the examples that the dataset lists, without reading a label file."""
        is_listed = 'instances' in info or 'gt_label' in info
        if not is_listed or not self._num_classes:
            return None
        return examples_in_lists([info], self._num_classes)

    def in_labels(self, info: dict) -> Examples | None:
        """Count the pixels of each class in labels that are already loaded."""
        if 'label_windows' in info:
            counts = info['label_windows'].counts
        elif 'gt_seg_map' in info and self._num_classes:
            labels = info['gt_seg_map']
            counts = np.bincount(labels[(labels >= 0) & (labels < self._num_classes)].ravel())
        else:
            return None
        missing = max(0, self._num_classes - len(counts))
        return Examples.of_counts(PIXELS, np.pad(counts, (0, missing))[: self._num_classes])


def examples_in_lists(infos: Sequence[dict], num_classes: int) -> Examples:
    """Count the objects, or the classes, that a dataset lists for images.

    Objects that are ignored in training, such as crowds, are not examples.
    """
    if infos and 'gt_label' in infos[0]:
        return Examples.of(IMAGES, [[info['gt_label']] for info in infos], num_classes)
    labels = [
        [
            # mmdet ignores an object without the mask that it needs.
            *(
                i['bbox_label']
                for i in info['instances']
                if not i['ignore_flag'] and i.get('mask', 1)
            ),
            *(s['category'] for s in info.get('segments_info', ()) if not s['is_thing']),
        ]
        for info in infos
    ]
    return Examples.of(OBJECTS, labels, num_classes)


def examples_of(dataset: Any, split: str, max_bad_share: float) -> tuple[Examples | None, bool]:
    """Count the examples of a built dataset, reading no more label images than needed.

    Args:
        dataset: The dataset, which may join others or wrap one.
        split: 'train', 'val' or 'test'. A training needs two classes, an evaluation one.
        max_bad_share: The share of images that may be unreadable.

    Returns:
        The examples, or None if there is nothing to count, and whether all images are counted.
        Scenes are not counted: their datasets refuse scenes without labels.
    """
    inner = getattr(dataset, 'datasets', None) or [getattr(dataset, 'dataset', None)]
    if inner[0] is not None:
        parts = [examples_of(part, split, max_bad_share) for part in inner]
    elif hasattr(dataset, 'examples'):
        parts = [(dataset.examples, True)]
    elif hasattr(dataset, 'scenes'):
        parts = [(None, False)]
    else:
        parts = [_examples_read(dataset, split, max_bad_share)]
    counted = [examples for examples, _ in parts if examples is not None]
    total = sum(counted[1:], counted[0]) if counted else None
    return total, all(is_complete for _, is_complete in parts)


def _examples_read(dataset: Any, split: str, max_bad_share: float) -> tuple[Examples | None, bool]:
    """Count the examples in a few images, and read on until there is something to learn."""
    count, total, num_bad = ExampleCounter(dataset), None, 0
    first = dict.fromkeys(
        np.linspace(0, len(dataset) - 1, min(len(dataset), NUM_READ)).astype(int).tolist()
    )
    others = (index for index in range(len(dataset)) if index not in first)
    for number, index in enumerate(chain(first, others)):
        if number >= len(first):
            if total is None or _can_be_used(total, split):
                return total, False
            if number == len(first):
                message = f'{split}: {number} label images show too few classes, so more are read'
                print_log(message, 'current')
        try:
            examples = count(dataset.get_data_info(index))
        except Exception:  # the run reports a bad image when it loads it
            num_bad += 1
            continue
        if examples is not None:
            total = examples if total is None else total + examples
    return total, total is not None and num_bad <= max_bad_share * len(dataset)


def _can_be_used(examples: Examples, split: str) -> bool:
    needed = min(2, len(examples.counts)) if split == 'train' else 1
    return np.count_nonzero(examples.counts) >= needed


def refusal(split: str, examples: Examples, classes: Sequence[str]) -> str:
    """Return why nothing can be learned or measured in a split, or ''."""
    occurring = np.flatnonzero(examples.counts)
    values = dict(split=split, number=examples.number, last=len(classes) - 1)
    if not len(occurring):
        return (NO_PIXELS if examples.unit == PIXELS else NO_OBJECTS).format(**values)
    is_single = len(occurring) == 1 < len(classes)
    if examples.unit == PIXELS and is_single and split == 'train':
        return printable(ONE_CLASS.format(name=classes[occurring[0]], **values))
    return ''


def missing_classes(examples: Mapping[str, Examples], classes: Sequence[str]) -> list[str]:
    """Return a sentence for each split in which some classes, but not all, have no example."""
    sentences = []
    for split, of_split in examples.items():
        missing = np.flatnonzero(of_split.counts == 0)
        if not 0 < len(missing) < len(classes):
            continue
        names = ', '.join(classes[i] for i in missing[:MAX_NAMED])
        more = f' and {len(missing) - MAX_NAMED} more' if len(missing) > MAX_NAMED else ''
        others = [s for s, e in examples.items() if s != split and e.counts[missing].any()]
        though = f', although {" and ".join(others)} has some' if others else ''
        what = 'cannot be learned' if split == 'train' else 'are not measured'
        sentences.append(
            printable(f'{split}: no {of_split.unit} of {names}{more}, which {what}{though}')
        )
    return sentences


def is_measured(cfg: Config, split: str) -> bool:
    """Return whether a split is learned, or has a metric that compares it with its labels."""
    if split == 'train':
        return True
    return any(not node.get('format_only') for _, node in typed_nodes(cfg[f'{split}_evaluator']))
