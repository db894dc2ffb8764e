"""What the classes of a model are called, and their colours."""

import colorsys
from collections.abc import Mapping
from numbers import Real
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS
from torch import nn

from ..datasets.config import leaf_datasets
from ..errors import UserError, one_line, reason

Colour = tuple[int, int, int]  # red, green, blue, 0..255

GOLDEN_RATIO = 0.618033988749895  # steps of it on the circle of hues stay far from one another
SATURATIONS = (0.85, 0.55)
VALUES = (0.95, 0.7, 0.85)
MAX_NAME = 100  # characters of a class in a checkpoint
COCO = (80, 'person', 'toothbrush')  # how many there are, the first and the last
COCO_LEAVES_OUT = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)  # of the numbers up to 90


def classes_and_palette(
    cfg: Config, checkpoint: Any, model: nn.Module
) -> tuple[tuple[str, ...], tuple[Colour, ...]]:
    """Find the names of a model's classes, and a colour for each.

    The first that knows them decides: ``metainfo`` of the config's test dataset, the checkpoint,
    which names those that it was trained on, and the class of the dataset, as COCO's. The data
    itself is not looked at. Where nobody knows them they are numbered.

    Args:
        cfg: The config; the registries of its framework are filled.
        checkpoint: What the file holds.
        model: The detector or segmentor.

    Raises:
        UserError: If the model has neither a box head nor a decode head; if as many classes as
            it has are named nowhere, but others are.
    """
    num_classes = _number_of_classes(cfg, model)
    known = [info for info in _metainfos(cfg, checkpoint) if _is_names(info.get('classes'))]
    info = next((info for info in known if len(info['classes']) == num_classes), {})
    if known and not info:
        classes = known[0]['classes']
        raise UserError(
            f'{cfg.filename}: the heads have {num_classes} classes, but {len(classes)} are named '
            f'({", ".join(classes)}): set metainfo.classes of the test dataset'
        )
    classes = info.get('classes') or [f'class {i}' for i in range(num_classes)]
    palette = info.get('palette')
    if not _is_palette(palette, num_classes):
        palette = distinct_colours(num_classes)
    return tuple(classes), tuple(tuple(int(v) for v in colour) for colour in palette)


def category_ids(classes: tuple[str, ...]) -> list[int]:
    """Numbers for an annotation file: COCO's own for its 80 classes, else counted from 1."""
    if (len(classes), classes[0], classes[-1]) == COCO:
        return [i for i in range(1, 91) if i not in COCO_LEAVES_OUT]
    return list(range(1, len(classes) + 1))


def distinct_colours(number: int) -> list[Colour]:
    """Colours that can be told apart, the first ones best; always the same."""
    return [
        tuple(
            round(255 * v)
            for v in colorsys.hsv_to_rgb(
                i * GOLDEN_RATIO % 1, SATURATIONS[i % len(SATURATIONS)], VALUES[i % len(VALUES)]
            )
        )
        for i in range(number)
    ]


def _number_of_classes(cfg: Config, model: nn.Module) -> int:
    roi_head = getattr(model, 'roi_head', None)
    heads = (
        getattr(model, 'decode_head', None),
        getattr(roi_head, 'bbox_head', None),
        getattr(model, 'bbox_head', None),
    )
    for head in heads:
        last = head[-1] if isinstance(head, nn.ModuleList) else head
        if hasattr(last, 'num_classes'):
            return last.num_classes
    raise UserError(
        f'{cfg.filename}: a {type(model).__name__} has neither a box head nor a decode head: '
        'name a detector with boxes, or a segmentor'
    )


def _metainfos(cfg: Config, checkpoint: Any) -> list[Mapping]:
    dataset = next(leaf_datasets(cfg.test_dataloader.dataset))
    try:
        of_dataset = DATASETS.build({**dataset, 'lazy_init': True, 'pipeline': []}).metainfo
    except Exception as error:  # of any dataset's own checks
        raise UserError(
            f'{cfg.filename}: the test dataset cannot be built ({reason(error)})'
        ) from None
    meta = checkpoint.get('meta') if isinstance(checkpoint, Mapping) else None
    meta = meta if isinstance(meta, Mapping) else {}
    of_checkpoint = meta.get('dataset_meta')
    if not isinstance(of_checkpoint, Mapping):
        of_checkpoint = meta  # of mmdet 2 and mmseg 0, in capitals
    of_checkpoint = {str(key).lower(): value for key, value in of_checkpoint.items()}
    if _is_names(of_checkpoint.get('classes')):  # they are drawn, printed and written
        of_checkpoint['classes'] = [one_line(name, MAX_NAME) for name in of_checkpoint['classes']]
    named_in_config = (dataset.get('metainfo') or {}).get('classes')
    return [of_dataset, of_checkpoint] if named_in_config else [of_checkpoint, of_dataset]


def _is_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)


def _is_palette(value: Any, number: int) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == number and all(map(_is_colour, value))


def _is_colour(value: Any) -> bool:
    is_triple = isinstance(value, (list, tuple)) and len(value) == 3
    return is_triple and all(isinstance(v, Real) and 0 <= v < 256 for v in value)
