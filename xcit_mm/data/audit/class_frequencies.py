"""The frequency of each class in the training data, and a config that balances the classes."""

import re
from dataclasses import dataclass
from pathlib import Path
from pprint import pformat
from typing import Any

import numpy as np
from mmengine.config import Config
from torch.utils.data import Dataset

from ...base.errors import MAX_LINE, UserError, one_line, printable
from ...config.tree import class_name, dicts, leaf_datasets, typed_nodes
from ..transforms.decode import explained
from .examples import IMAGES, ExampleCounter, Examples
from .read_data import read_in_parallel, training_data

RARE = 0.5  # of the images of the median class; a class in fewer images is repeated
NO_LOSS = 'No loss of the model has a weight for each class of pixels.'
NOT_RARE = f'Every class is in at least {RARE:g} times as many images as the median class.'


@dataclass
class ClassFrequencies:
    """The frequencies of the classes, and the config that balances them.

    Attributes:
        classes: Their names.
        unit: What is counted, 'pixels' or 'objects'.
        counts: The number of pixels or objects of each class.
        images: The number of images with each class.
        number: The number of images.
        factors: The weight of each class, or how often its images are repeated.
        config: A config that inherits from the one whose data was read; '' if no value helps.
        remark: Why there is no config, or ''.
        left_out: For each image that was not read, the reason.
    """

    classes: list[str]
    unit: str
    counts: list[int]
    images: list[int]
    number: int
    factors: list[float]
    config: str
    remark: str
    left_out: list[str]

    def text(self) -> str:
        """Return the config, with the frequencies as comments, so that it can be a file."""
        factor = 'weight' if self.unit == 'pixels' else 'repeated'
        rows = [('class', self.unit, 'share', 'images', factor)]
        total = max(sum(self.counts), 1)
        for values in zip(self.classes, self.counts, self.images, self.factors, strict=True):
            name, count, images, number = values
            rows.append(
                (one_line(name), str(count), f'{count / total:.3%}', str(images), f'{number:.4g}')
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            '# ' + ' '.join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in rows
        ]
        lines.append(f'# Of {self.number} training images.')
        if self.left_out:
            first = one_line(self.left_out[0], MAX_LINE)
            lines.append(f'# {len(self.left_out)} images are left out, such as {first}')
        return '\n'.join([*lines, self.config or f'# {self.remark}'])


def class_frequencies(cfg: Config, workers: int | None = None) -> ClassFrequencies:
    """Count the classes in all training images of an adapted config, and balance them.

    For a segmentor, the weights are computed by median frequency (arXiv 1411.4734, section 6.3.2):
    the frequency of a class is its share of the pixels in the images that contain it, and its
    weight is the median of all frequencies divided by its own frequency. For a detector, the images
    of rare classes are repeated (arXiv 1908.03195, section 4): images with a class that occurs in a
    share f of all images are used sqrt(t / f) times, rounded up as in mmengine, where t is half of
    the median share.

    Raises:
        UserError: If the data is missing or has neither label images nor objects, if no image can
            be read, if the classes differ between joined datasets, or if a process crashes.
    """
    total, left_out, names = None, [], set()
    for dataset in training_data(cfg):
        names.add(tuple(dataset.metainfo.get('classes') or ()))
        if len(names) > 1:
            raise UserError('the training data joins datasets with different classes')
        for examples in read_in_parallel(_Images(dataset), workers, 'Reading train'):
            if isinstance(examples, str):
                left_out.append(printable(examples))
            else:
                total = examples if total is None else total + examples
    classes = list(names.pop())
    if total is None:
        why = f'; the first: {left_out[0]}' if left_out else ''
        raise UserError(f'no image of the training data can be read{why}')
    balance = _weights if total.unit == 'pixels' else _repeats
    factors, config, remark = balance(cfg, total)
    return ClassFrequencies(
        classes,
        total.unit,
        total.counts.tolist(),
        total.images.tolist(),
        total.number,
        factors.tolist(),
        config and f'_base_ = {str(Path(cfg.filename).resolve())!r}\n{config}',
        remark,
        left_out,
    )


class _Images(Dataset):
    """The examples in each image of a dataset or, for an image that cannot be read, the reason."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._count = dataset, ExampleCounter(dataset)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Examples | str:
        info = self._dataset.get_data_info(index)
        try:
            examples = self._count(info)
        except Exception as error:  # decoders raise many kinds
            return f'{info["seg_map_path"]}: {explained(error)}'
        if examples is None or examples.unit == IMAGES:
            raise UserError('the training data has neither objects nor label images to count')
        return examples


def _weights(cfg: Config, total: Examples) -> tuple[np.ndarray, str, str]:
    occurs = total.counts > 0
    frequencies = total.counts[occurs] / total.around[occurs]
    weights = np.ones(len(occurs))  # also of a class that never occurs
    if occurs.any():
        weights[occurs] = np.median(frequencies) / frequencies
    weights = np.array([float(f'{weight:.4g}') for weight in weights])
    places = [
        place
        for place, node in typed_nodes(cfg.get('model') or {}, 'model')
        if class_name(node['type']) == 'CrossEntropyLoss' and not node.get('use_sigmoid')
        if 'loss_decode' in place.split('.')
    ]
    if not places:
        return weights, '', NO_LOSS
    values = pformat(weights.tolist(), width=100, compact=True)
    lines = [f'class_weight = {values}', 'model = _base_.model']
    return (
        weights,
        '\n'.join([*lines, *(f'{_path(p)}.class_weight = class_weight' for p in places)]),
        '',
    )


def _repeats(cfg: Config, total: Examples) -> tuple[np.ndarray, str, str]:
    shares = total.images[total.images > 0] / total.number
    limit = float(f'{RARE * np.median(shares):.4g}') if len(shares) else 0.0
    with np.errstate(divide='ignore'):
        factors = np.ceil(np.sqrt(limit * total.number / total.images))
    factors = np.where(total.images > 0, np.maximum(1, factors), 1)
    places = [
        place
        for place, node in dicts(cfg.train_dataloader.dataset, 'train_dataloader.dataset')
        if any(node is leaf for leaf in leaf_datasets(cfg.train_dataloader.dataset))
    ]
    if factors.max(initial=1) == 1:
        return factors, '', NOT_RARE
    if len(places) > 1:
        return (
            factors,
            '',
            f'{len(places)} datasets are joined: wrap each one that has rare classes.',
        )
    (place,) = map(_path, places)
    lines = [
        'train_dataloader = _base_.train_dataloader',
        f'{place} = dict(',
        "    _delete_=True, type='ClassBalancedDataset',",
        f'    oversample_thr={limit}, dataset={place},',
        ')',
    ]
    return factors, '\n'.join(lines), ''


def _path(place: str) -> str:
    """Return a dotted place as Python reaches it, with numbers in brackets."""
    return re.sub(r'\.(\d+)\b', r'[\1]', place)
