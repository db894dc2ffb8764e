"""The rules for models of heights: head, losses, data and metrics belong together."""

from collections.abc import Iterator

from mmengine.config import Config

from ..base.errors import UserError
from .data_rules import HEADS
from .tree import class_name, split_datasets, typed_nodes

ESTIMATORS, HEAD = ('AlignedDepthEstimator', 'DepthEstimator'), 'HeightHead'
ESTIMATOR = ESTIMATORS[0]
LOADERS = ('LoadHeights', 'LoadDepthAnnotation')
METRICS = ('HeightMetric', 'DepthMetric')
METRICS_OF_CLASSES = ('ClassIoUMetric', 'IoUMetric', 'CityscapesMetric')


def check_heights(cfg: Config, splits: tuple[str, ...]) -> None:
    """Refuse parts that do not fit a model of heights, or fit only such a model."""
    is_estimator = class_name(cfg.model.get('type')) in ESTIMATORS
    _check_heads(cfg.model, is_estimator)
    for split in splits:
        for place, kind in _metrics(cfg, split):
            if is_estimator and kind in METRICS_OF_CLASSES:
                raise UserError(
                    f'{place}: {kind} measures classes, but the model is an {ESTIMATOR}: write '
                    "dict(type='HeightMetric')"
                )
            if not is_estimator and kind in METRICS:
                raise UserError(
                    f'{place}: {kind} measures heights, but model.type={cfg.model.get("type")!r} '
                    f'predicts none: write {ESTIMATOR!r}, or use another metric'
                )
        if is_estimator:
            _check_datasets(cfg, split)
    if is_estimator and cfg.get('stream') is not None:
        raise UserError(
            'stream: a training or a test on whole images is possible with classes or objects, '
            'not with heights: set stream=None; tools/infer.py --stream predicts heights'
        )


def _check_heads(model: dict, is_estimator: bool) -> None:
    heads = {f'model.{name}': model.get(name) for name in ('decode_head', 'auxiliary_head')}
    for place, head in heads.items():
        kind = class_name(head.get('type')) if isinstance(head, dict) else None
        if is_estimator and kind in HEADS:
            raise UserError(
                f'{place}: {kind} predicts classes, but the model is an {ESTIMATOR}: write '
                f'type={HEAD!r}'
            )
        if kind != HEAD:
            continue
        if not is_estimator:
            raise UserError(
                f'{place}: {HEAD} predicts heights, but model.type={model.get("type")!r} makes '
                f'classes of them: write {ESTIMATOR!r}'
            )
        losses = [class_name(node['type']) for _, node in typed_nodes(head.get('loss_decode'))]
        if 'LabeledSiLogLoss' in losses and not head.get('positive', False):
            raise UserError(
                f'{place}: LabeledSiLogLoss needs positive heights, and has no gradient where a '
                'height is not positive: write positive=True'
            )
        if 'SiLogLoss' in losses:
            raise UserError(
                f'{place}: the gradient of SiLogLoss is NaN for an image without a label: write '
                'LabeledSiLogLoss'
            )
    if is_estimator and (model.get('test_cfg') or {}).get('mode') == 'slide':
        raise UserError(
            f"model.test_cfg.mode='slide': an {ESTIMATOR} ignores it: write mode='whole'; "
            'tools/infer.py --sliced predicts slices'
        )


def _metrics(cfg: Config, split: str) -> Iterator[tuple[str, str]]:
    place = f'{split}_evaluator'
    for where, node in typed_nodes(cfg.get(place) or [], place):
        yield where, class_name(node['type'])


def _check_datasets(cfg: Config, split: str) -> None:
    for dataset in split_datasets(cfg, split):
        kind = class_name(dataset.get('type'))
        if kind in ('BaseSegDataset', 'SegmentationFolders'):
            raise UserError(
                f'{split}_dataloader: {kind} has labels of classes, but the model is an '
                f"{ESTIMATOR}: write type='HeightDataset'"
            )
        names = [class_name(node['type']) for _, node in typed_nodes(dataset.get('pipeline'))]
        if not set(names) & {*LOADERS}:
            raise UserError(
                f'{split}_dataloader: the pipeline of {kind} loads no heights: add dict(type='
                "'LoadHeights') after the loader of the image"
            )
