"""Names, colors and category numbers of a model's classes."""

import colorsys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from torch import nn

from ...base.errors import UserError, one_line
from ...config.tree import dataset_class, leaf_datasets
from ...network.weights.names import meta_of
from .drawing import Color

GOLDEN_RATIO = 0.618033988749895  # steps of it on the circle of hues stay far from each other
MAX_NAME_LENGTH = 100  # characters of a class name, which may come from a checkpoint
COCO = (80, 'person', 'toothbrush')  # the number of classes, the first and the last
UNUSED_COCO_IDS = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}


def classes_and_palette(
    cfg: Config, checkpoint: Any, model: nn.Module
) -> tuple[tuple[str, ...], tuple[Color, ...]]:
    """Return the names of a model's classes and a color for each.

    The names come from ``metainfo`` of the config's test dataset, else from the checkpoint, else
    from the class of the dataset. The data is not read. Without any names, classes are numbered.
    """
    num_classes = _num_classes(cfg, model)
    of_dataset, are_own = _of_config(cfg)
    infos = of_dataset, _of_checkpoint(checkpoint)
    infos = infos if are_own else infos[::-1]  # in order of priority
    named = [info for info in infos if _are_names(info.get('classes'))]
    info = next((info for info in named if len(info['classes']) == num_classes), {})
    if named and not info:
        names = named[0]['classes']
        raise UserError(
            f'{cfg.filename}: the heads have {num_classes} classes, but {len(names)} are named '
            f'({one_line(", ".join(names))}): set metainfo.classes of the test dataset'
        )
    names = info.get('classes') or [f'class {i}' for i in range(num_classes)]
    names = tuple(one_line(name, MAX_NAME_LENGTH) for name in names)
    return names, valid_palette(info.get('palette'), num_classes)


def names_classes(cfg: Config) -> bool:
    """Return whether the config itself names the classes, before the checkpoint."""
    return _of_config(cfg)[1]


def check_names(cfg: Config, checkpoint: Any, path: str, *, predicts: bool) -> str:
    """Compare the classes of a config with as many classes that a checkpoint was trained on.

    Returns:
        A sentence about the first class with another name, for a warning, or ''.

    Raises:
        UserError: If the model ``predicts`` and has the same names in another order, so that the
            predictions would have wrong names.
    """
    if cfg.get('test_dataloader') is None:
        return ''
    of_dataset, are_own = _of_config(cfg)
    infos = of_dataset, _of_checkpoint(checkpoint)
    named = [info.get('classes') for info in infos]
    if not all(map(_are_names, named)):
        return ''
    names = [[one_line(name, MAX_NAME_LENGTH) for name in classes] for classes in named]
    ours, trained = names
    if ours == trained or len(ours) != len(trained):
        return ''
    number, pair = next((i, p) for i, p in enumerate(zip(*names, strict=True)) if p[0] != p[1])
    place = 'metainfo.classes' if are_own else 'the class of the dataset'
    sentence = (
        f'class {number} is {pair[0]} in {place} of {cfg.filename}, but {pair[1]} in the '
        f'checkpoint {path}'
    )
    if predicts and sorted(ours) == sorted(trained):
        raise UserError(f'{sentence}: list the classes as {one_line(", ".join(trained))}')
    return f'{sentence[0].upper()}{sentence[1:]}.'


def valid_palette(palette: Any, num_classes: int) -> tuple[Color, ...]:
    """Return the palette of a dataset or checkpoint, or distinct colors if it is invalid."""
    try:
        colors = np.array(palette, float)
    except (TypeError, ValueError, RuntimeError):
        colors = np.empty(0)
    if colors.shape == (num_classes, 3) and ((colors >= 0) & (colors < 256)).all():
        return tuple(map(tuple, colors.astype(int).tolist()))
    return distinct_colors(num_classes)


def distinct_colors(number: int) -> tuple[Color, ...]:
    """Return colors that can be told apart, the first ones best; always the same."""
    colors = (colorsys.hsv_to_rgb(i * GOLDEN_RATIO % 1, 0.8, 0.9) for i in range(number))
    return tuple(tuple(round(255 * value) for value in color) for color in colors)


def category_ids(classes: tuple[str, ...]) -> list[int]:
    """Return numbers for an annotation file: COCO's for its 80 classes, else 1, 2, ..."""
    if (len(classes), classes[0], classes[-1]) == COCO:
        return [i for i in range(1, 91) if i not in UNUSED_COCO_IDS]
    return list(range(1, len(classes) + 1))


def _num_classes(cfg: Config, model: nn.Module) -> int:
    box_head = getattr(getattr(model, 'roi_head', None), 'bbox_head', None)
    names = 'panoptic_fusion_head', 'decode_head', 'bbox_head'
    fusion, decode, dense = (getattr(model, name, None) for name in names)
    for head in (fusion, decode, box_head, dense):
        last = head[-1] if isinstance(head, nn.ModuleList) else head
        if hasattr(last, 'num_classes'):
            return last.num_classes
    raise UserError(
        f'{cfg.filename}: a {type(model).__name__} has neither a box head nor a decode head: '
        'name a detector with boxes, or a segmentor'
    )


def _of_config(cfg: Config) -> tuple[Mapping, bool]:
    """Return ``metainfo`` of the test dataset, and whether the config itself names the classes."""
    dataset = next(leaf_datasets(cfg.test_dataloader.dataset))
    in_config = dataset.get('metainfo') or {}
    defaults = getattr(dataset_class(dataset, cfg.default_scope), 'METAINFO', {})
    info = {**defaults, **in_config}
    names = info.get('classes')
    if isinstance(names, str) and Path(names).is_file():  # one class a line, as in mmengine
        info['classes'] = Path(names).read_text(encoding='utf-8').splitlines()
    return info, bool(in_config.get('classes'))


def _of_checkpoint(checkpoint: Any) -> Mapping:
    meta = meta_of(checkpoint)
    # mmdet 2 and mmseg 0 write CLASSES and PALETTE into ``meta`` itself.
    meta = meta['dataset_meta'] if isinstance(meta.get('dataset_meta'), Mapping) else meta
    return {str(key).lower(): value for key, value in meta.items()}


def _are_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)
