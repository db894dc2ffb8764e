"""Test-time augmentation in the config of a test."""

from collections.abc import Sequence
from typing import Any

from mmengine.config import Config

from ..base.errors import UserError
from .draft import RESIZE
from .tree import class_name, split_datasets

# Sizes of the views relative to the size of the test, as in the configs of mmdet and mmseg.
RATIOS = {'mmdet': (0.5, 1.0, 1.5), 'mmseg': (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)}
NMS = dict(type='nms', iou_threshold=0.5)  # for detectors that need none by themselves
MAX_PER_IMG = 100
FLIP_KEYS = ('flip', 'flip_direction')


def use_tta(cfg: Config) -> list[str]:
    """Make a test merge the predictions for several sizes of an image, plain and mirrored.

    A ``tta_pipeline`` and a ``tta_model`` of the config are used as they are. Without them, the
    views follow from the test pipeline. Edits ``cfg`` and returns sentences for the log.
    """
    dataset, *others = split_datasets(cfg, 'test')
    if others or cfg.get('default_scope') not in RATIOS:
        raise UserError(
            f'--tta: the test data of {cfg.filename} is not a single dataset of mmdet or mmseg, '
            'whose predictions can be merged'
        )
    test_cfg = cfg.model.get('test_cfg') or {}
    if cfg.model.get('panoptic_fusion_head') and test_cfg.get('panoptic_on', True):
        raise UserError(
            '--tta merges objects with boxes, not the segments of a panoptic model: add '
            '--cfg-options model.test_cfg.panoptic_on=False to evaluate its objects'
        )
    ratios = RATIOS[cfg.default_scope]
    sizes = ', '.join(map(str, ratios))
    views = f'{len(ratios)} sizes ({sizes} times the size of the test), plain and mirrored'
    if cfg.get('tta_pipeline') is not None:
        views = 'the views of tta_pipeline'
    else:
        cfg.tta_pipeline = _pipeline(dataset.pipeline, ratios)
    if cfg.get('tta_model') is None:
        cfg.tta_model = dict(type='SegTTAModel')
        if cfg.default_scope == 'mmdet':
            last = test_cfg.get('rcnn') or test_cfg  # the stage that predicts the final boxes
            nms, max_per_img = last.get('nms') or NMS, last.get('max_per_img', MAX_PER_IMG)
            tta_cfg = dict(nms=nms, max_per_img=max_per_img)
            cfg.tta_model = dict(type='InstanceTTAModel', tta_cfg=tta_cfg)
    dataset.pipeline = cfg.tta_pipeline
    cfg.default_hooks.tta = dict(type='TTAHook', model=cfg.tta_model)
    return [f'Test-time augmentation: {views}, merged by {cfg.tta_model.type}.']


def _pipeline(pipeline: Sequence[dict], ratios: Sequence[float]) -> list[dict]:
    """Replace the Resize of a pipeline with one for each ratio, or add these if it has none.

    Views may be larger than what ``LoadImage(draft=...)`` decodes, so images are decoded whole.
    """
    pipeline = [{k: v for k, v in transform.items() if k != 'draft'} for transform in pipeline]
    names = [class_name(transform['type']) for transform in pipeline]
    resizes = [i for i, name in enumerate(names) if name in ('Resize', RESIZE)]
    start = resizes[0] if resizes else 1  # after the loading of the image
    rest = start + bool(resizes)
    resize = pipeline[start] if resizes else dict(scale_factor=1.0, keep_ratio=True)
    sizes = [{**resize, 'type': 'Resize', **_scaled(resize, ratio)} for ratio in ratios]
    flips = [dict(type='RandomFlip', prob=prob) for prob in (0.0, 1.0)]
    after = [[_for_views(dict(t), max(ratios))] for t in pipeline[rest:]]
    return [*pipeline[:start], dict(type='TestTimeAug', transforms=[sizes, flips, *after])]


def _scaled(resize: dict[str, Any], ratio: float) -> dict[str, Any]:
    if resize.get('scale') is None:
        return dict(scale_factor=resize['scale_factor'] * ratio)
    scale = resize['scale']
    sides = (scale, scale) if isinstance(scale, int) else scale
    return dict(scale=tuple(round(side * ratio) for side in sides))


def _for_views(transform: dict[str, Any], largest: float) -> dict[str, Any]:
    """Adapt a transform after Resize: pad to the largest view, and record what is mirrored."""
    name = class_name(transform['type'])
    if name == 'Pad' and transform.get('size') is not None:
        transform['size'] = tuple(round(side * largest) for side in transform['size'])
    if name.startswith('Pack') and 'meta_keys' in transform:
        transform['meta_keys'] = (*dict.fromkeys((*transform['meta_keys'], *FLIP_KEYS)),)
    return transform
