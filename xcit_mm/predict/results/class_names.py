"""Names, colors and category numbers of a model's classes."""

from collections.abc import Mapping
from typing import Any

from mmengine.config import Config
from torch import nn

from ...base.colors import Color, class_colors, is_palette
from ...base.errors import UserError, one_line
from ...config.metainfo import metainfo_of
from ...config.tree import leaf_datasets
from ...network.weights.names import meta_of

MAX_NAME_LENGTH = 100  # characters of a class name, which may come from a checkpoint
COCO = (80, 'person', 'toothbrush')  # the number of classes, the first and the last
UNUSED_COCO_IDS = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}


def classes_and_palette(
    cfg: Config, checkpoint: Any, model: nn.Module
) -> tuple[tuple[str, ...], tuple[Color, ...]]:
    """Return the names of a model's classes and a color for each.

    The names come from ``metainfo`` of the config's test dataset, else from the checkpoint, else
    from the class of the dataset. The data is not read. Without any names, classes are numbered.
    Where the first of these has names and no colors, the colors are those of the next one with
    equal names, else distinct ones.
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
    same = [i.get('palette') for i in named if [*i['classes']] == [*names]]
    palette = next((palette for palette in same if is_palette(palette, num_classes)), None)
    names = tuple(one_line(name, MAX_NAME_LENGTH) for name in names)
    return names, class_colors(palette, num_classes)


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
    are_own = bool((dataset.get('metainfo') or {}).get('classes'))
    return metainfo_of(dataset, cfg.default_scope), are_own


def _of_checkpoint(checkpoint: Any) -> Mapping:
    meta = meta_of(checkpoint)
    # mmdet 2 and mmseg 0 write CLASSES and PALETTE into ``meta`` itself.
    meta = meta['dataset_meta'] if isinstance(meta.get('dataset_meta'), Mapping) else meta
    return {str(key).lower(): value for key, value in meta.items()}


def _are_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)
