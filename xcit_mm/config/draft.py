"""JPEG files decoded at the size that a pipeline needs: the option ``draft`` of a config."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ..base.errors import UserError
from .tree import class_name, sampled_datasets

SPLITS = ('train', 'val', 'test')
LOADERS = ('LoadImage', 'LoadImageFromFile')
# Transforms that need neither the pixels nor the size of the decoded image.
BEFORE_RESIZE = ('LoadAnnotations', 'LoadLabels', 'LoadPanoptic', 'LoadPanopticAnnotations')
RESIZE = 'DraftResize'
RESIZES = ('Resize', RESIZE, 'RandomChoiceResize', 'RandomResize')


def use_draft(cfg: Config, value: Any, path: Path) -> None:
    """Decode JPEG files at the size that the first resize of each pipeline needs.

    In the pipelines of ``cfg``, ``LoadImage`` gets the size, a ``DraftResize`` takes the place of
    each first resize, and a flip before it moves behind it. ``path`` is the file of the config, for
    errors.

    Raises:
        UserError: If the value is not True, or a pipeline changes an image before it resizes it.
    """
    if value is not True:
        raise UserError(f'--cfg-options draft={value!r}: the only value is True')
    for split, pipeline in _pipelines(cfg):
        _flip_later(pipeline)
        resizes = _first_resizes(pipeline, f'{path}: the {split} pipeline')
        loader = next(t for t in pipeline if class_name(t.get('type')) in LOADERS)
        sizes = [size for resize in resizes for size in _sizes(resize, str(path))]
        longest, shortest = (max(pick(size) for size in sizes) for pick in (max, min))
        loader['type'], loader['draft'] = 'LoadImage', (longest, shortest)
        for resize in resizes:
            is_drawn = class_name(resize['type']) not in ('Resize', RESIZE)
            resize['resize_type' if is_drawn else 'type'] = RESIZE


def check_draft(cfg: Config) -> None:
    """Refuse a ``LoadImage.draft`` that no ``DraftResize`` follows, which alone knows the size."""
    for split, pipeline in _pipelines(cfg):
        if not any(t.get('draft') for t in pipeline if class_name(t.get('type')) in LOADERS):
            continue
        place = f'{cfg.filename}: the {split} pipeline'
        for resize in _first_resizes(pipeline, place):
            if RESIZE not in (class_name(resize['type']), resize.get('resize_type')):
                raise UserError(
                    f'{place} has LoadImage.draft and then {class_name(resize["type"])}, which '
                    f'takes the decoded size for that of the image: write {RESIZE}'
                )


def _pipelines(cfg: Config) -> Iterator[tuple[str, list[dict]]]:
    """Yield the pipelines that load images, with their splits."""
    for split in SPLITS:
        dataset = (cfg.get(f'{split}_dataloader') or {}).get('dataset')
        for sampled in sampled_datasets(dataset) if dataset else ():
            while class_name(sampled.get('type')) == 'MultiImageMixDataset':
                sampled = sampled['dataset']  # whose pipeline loads; that of the mix has images
            pipeline = sampled.get('pipeline') or ()
            if any(class_name(t.get('type')) in LOADERS for t in pipeline):
                yield split, pipeline


def _flip_later(pipeline: list[dict]) -> None:
    """Move flips, which read the size of the decoded image, behind the first other transform."""
    kinds = [class_name(transform.get('type')) for transform in pipeline]
    passed = (*LOADERS, *BEFORE_RESIZE, 'RandomFlip')
    first = next((i for i, kind in enumerate(kinds) if kind not in passed), len(kinds))
    loading = [i for i in range(first) if kinds[i] != 'RandomFlip']
    flips = [i for i in range(first) if kinds[i] == 'RandomFlip']
    order = [*loading, *range(first, first + 1), *flips, *range(first + 1, len(kinds))]
    pipeline[:] = [pipeline[i] for i in order if i < len(kinds)]


def _first_resizes(pipeline: Sequence[dict], place: str) -> list[dict]:
    """Return the resize that follows the loader, or that of each branch of a RandomChoice."""
    for transform in pipeline:
        kind = class_name(transform.get('type'))
        if kind in (*LOADERS, *BEFORE_RESIZE):
            continue
        if kind == 'RandomChoice':
            branches = transform['transforms']
            return [resize for branch in branches for resize in _first_resizes(branch, place)]
        if kind in RESIZES:
            return [transform]
        if kind.startswith('Pack'):
            break
        raise UserError(
            f'{place} has {kind} before it resizes an image, and needs all of its pixels: leave '
            'draft out'
        )
    raise UserError(f'{place} does not resize its images: leave draft out')


def _sizes(resize: dict, place: str) -> Iterator[tuple[int, int]]:
    """Yield the largest sizes in pixels that a transform resizes to, the sides in any order."""
    kind, scale = class_name(resize['type']), resize.get('scale') or resize.get('scales')
    if not resize.get('keep_ratio') or scale is None:
        raise UserError(
            f'{place}: {kind} needs keep_ratio=True and a scale in pixels for draft, which decodes '
            'an image at a fraction of both of its sides'
        )
    largest = max(resize.get('ratio_range') or (1,))
    scales = scale if isinstance(scale[0], (list, tuple)) else [scale]
    for size in scales:
        yield tuple(round(side * largest) for side in size)
