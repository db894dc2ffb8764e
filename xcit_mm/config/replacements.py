"""The classes that run instead of those of mmengine, mmdet and mmseg that a config names.

``REPLACEMENTS`` is the whole list, and :func:`replace_classes` alone applies it. ``xcit config``
prints what it replaces in a config.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mmengine.config import Config

from .aligned_maps import ALIGNED, is_on_xcit
from .tree import class_name, replace_nodes, typed_nodes

# Whether a class is replaced, from the place of a part, the part, and the framework of the config.
Condition = Callable[[str, dict, str], bool]


class Replacement(NamedTuple):
    """A class, the class that runs instead, and what it does better.

    Attributes:
        name: The class in a config.
        replacement: The class that runs.
        reason: What it does, as the end of a sentence.
        applies: Whether the class is replaced in a part of a config.
        removed: The arguments that the class that runs does not have.
    """

    name: str
    replacement: str
    reason: str
    applies: Condition = lambda place, part, framework: True
    removed: tuple[str, ...] = ()


class Replaced(NamedTuple):
    """A class that was replaced in the part of a config at a dotted place."""

    place: str
    by: Replacement


def _with_only(*arguments: str) -> Condition:
    """The class that runs has no other arguments, such as color_type of LoadImageFromFile."""
    return lambda place, part, framework: part.keys() <= {'type', '_scope_', *arguments}


def _is_mmseg(place: str, part: dict, framework: str) -> bool:
    """Classes that are built on mmseg are registered with it only."""
    return framework == 'mmseg'


def _is_named_in_mmseg(place: str, part: dict, framework: str) -> bool:
    scope, dot, _ = part['type'].partition('.')
    return (scope if dot else framework) == 'mmseg'


def _is_segmentor_on_xcit(place: str, part: dict, framework: str) -> bool:
    return place == 'model' and framework != 'mmdet' and is_on_xcit(part)


_ROWS = (
    Replacement('EpochBasedTrainLoop', 'ResumableEpochLoop', 'resumes in the middle of an epoch'),
    Replacement(
        'IterBasedTrainLoop', 'ResumableIterLoop', 'resumes without reading the earlier data again'
    ),
    Replacement('ValLoop', 'SameSizeValLoop', 'predicts the same with any batch size'),
    Replacement('RuntimeInfoHook', 'StepInfoHook', 'waits for the GPU once in a step'),
    Replacement('LoggerHook', 'OneLineLoggerHook', 'logs a validation as one line'),
    Replacement(
        'CheckpointHook',
        'WholeCheckpointHook',
        'removes a checkpoint only when the next one is on the disk',
    ),
    Replacement(
        'EarlyStoppingHook', 'ResumableEarlyStoppingHook', 'saves its state in the checkpoints'
    ),
    Replacement(
        'CocoDataset', 'CheckedCocoDataset', 'checks the classes and reports dropped annotations'
    ),
    Replacement(
        'CocoPanopticDataset',
        'CheckedPanopticDataset',
        'needs no panopticapi and refuses annotations that mmdet would misread',
    ),
    Replacement(
        'LoadPanopticAnnotations',
        'LoadPanoptic',
        'needs no panopticapi and refuses images without an annotated segment',
    ),
    Replacement(
        'CocoPanopticMetric',
        'PanopticQualityMetric',
        'needs no panopticapi',
        _with_only('ann_file', 'seg_prefix', 'backend_args', 'collect_device', 'prefix'),
    ),
    Replacement('CocoMetric', 'CocoAPMetric', 'reads the same ids as CheckedCocoDataset'),
    Replacement('IoUMetric', 'ClassIoUMetric', 'counts large images by windows', _is_mmseg),
    Replacement(
        'LoadImageFromFile',
        'LoadImage',
        'refuses damaged images',
        _with_only('to_float32', 'backend_args'),
    ),
    Replacement(
        'LoadAnnotations',
        'LoadLabels',
        'reads the numbers that a file stores, with any number of bits',
        _is_named_in_mmseg,
        removed=('imdecode_backend',),
    ),
    Replacement('DetTTAModel', 'InstanceTTAModel', 'merges masks as well'),
    *(
        Replacement(name, aligned, 'puts labels at the pixels of the image', _is_segmentor_on_xcit)
        for name, aligned in ALIGNED.items()
    ),
)
REPLACEMENTS = {row.name: row for row in _ROWS}


def replace_classes(cfg: Config, parts: Sequence[str] | None = None) -> list[Replaced]:
    """Replace the classes in a config by those that run, and return what was replaced where.

    ``parts`` are the names at the top of the config to look into. Default: all.
    """
    if parts is None:
        _name_loops(cfg)
    replaced = []
    for top in cfg if parts is None else parts:
        # A copy: a part may be in several places of a config, which are edited one by one.
        cfg[top] = replace_nodes(cfg[top], lambda node: node)
        for place, part in typed_nodes(cfg[top], top):
            row = REPLACEMENTS.get(class_name(part['type']))
            is_name = isinstance(part['type'], str)
            if row and is_name and row.applies(place, part, cfg.get('default_scope')):
                part['type'] = row.replacement
                for argument in row.removed:
                    part.pop(argument, None)
                replaced.append(Replaced(place, row))
    return replaced


def _name_loops(cfg: Config) -> None:
    """Write the types of the loops that mmengine allows a config to leave out."""
    train_cfg, val_cfg = cfg.get('train_cfg'), cfg.get('val_cfg')
    if isinstance(train_cfg, dict) and 'type' not in train_cfg:
        by_epoch = train_cfg.pop('by_epoch', True)
        train_cfg.type = 'EpochBasedTrainLoop' if by_epoch else 'IterBasedTrainLoop'
    if isinstance(val_cfg, dict):
        val_cfg.setdefault('type', 'ValLoop')


def log_line(replaced: Sequence[Replaced]) -> list[str]:
    """Return the sentence for the log, or none if nothing was replaced."""
    pairs = sorted({(row.name, row.replacement) for _, row in replaced})
    named = ', '.join(f'{replacement} for {name}' for name, replacement in pairs)
    sentence = f'The config uses the classes of xcit_mm: {named}; tools/config.py CONFIG says why.'
    return [sentence] if replaced else []
