"""The rules for configs that stream whole images: the data is opened, not loaded."""

from collections.abc import Iterator

from mmengine.config import Config

from ..base.errors import UserError
from .tree import class_name, dicts

# The transforms that open files to read them by windows.
TRANSFORMS = ('OpenImage', 'OpenLabels', 'LoadObjects', 'FlipAndTurn', 'DistortColors', 'PackScene')
METRICS = ('ClassIoUMetric', 'CocoAPMetric')
# Settings that change how the layers of the model are called.
CHANGING = ('compile', 'activation_checkpointing', 'efficient_conv_bn_eval')


def streams_training(cfg: Config) -> bool:
    """Return whether a run also trains on whole images, rather than only evaluates them."""
    stream = cfg.get('stream')
    return stream is not None and stream.get('train', True)


def check_stream(cfg: Config, splits: tuple[str, ...]) -> None:
    """Refuse what cannot be computed tile by tile, or would read an image as a whole."""
    if cfg.get('stream') is None:
        _check_loaders(cfg, splits, "add stream=dict(memory='2GiB')")
        return
    trained = [split for split in splits if split == 'train']
    if trained and not streams_training(cfg):
        _check_loaders(cfg, ('train',), 'set stream.train=True')
        trained = []
    _check_model(cfg, is_trained=bool(trained))
    for split in (*trained, *(split for split in splits if split != 'train')):
        loader = cfg.get(f'{split}_dataloader')
        if loader is None:
            continue
        if loader.get('batch_size', 1) != 1:
            raise UserError(
                f'{split}_dataloader.batch_size={loader.batch_size}: whole images are streamed one '
                'at a time: write batch_size=1; optim_wrapper.accumulative_counts adds up the '
                'gradients of several images'
            )
        _check_pipelines(loader, f'{split}_dataloader')
        _check_metrics(cfg.get(f'{split}_evaluator') or [], f'{split}_evaluator')


def _check_model(cfg: Config, is_trained: bool) -> None:
    backbone = cfg.model.get('backbone') or {}
    if class_name(backbone.get('type')) != 'XCiT':
        raise UserError(
            f'stream needs an XCiT, but model.backbone is a {class_name(backbone.get("type"))}: '
            'set stream=None'
        )
    if is_trained and not backbone.get('norm_eval', False):
        raise UserError(
            'model.backbone.norm_eval=False: stream needs BatchNorm in evaluation mode, because '
            'the statistics of an image are known only after all of its tiles: write norm_eval=True'
        )
    test_cfg = cfg.model.get('test_cfg') or {}
    if cfg.model.get('panoptic_fusion_head') and test_cfg.get('panoptic_on', True):
        raise UserError('stream: the segments of a panoptic model need whole maps: set stream=None')
    if (cfg.model.get('data_preprocessor') or {}).get('batch_augments'):
        raise UserError(
            'model.data_preprocessor.batch_augments needs the whole image in memory: remove it, '
            'or set stream=None'
        )
    for name in CHANGING:
        if cfg.get(name):
            raise UserError(
                f'{name} does not work with stream, which calls layers tile by tile: remove it, or '
                'set stream=None'
            )


def _check_loaders(cfg: Config, splits: tuple[str, ...], remedy: str) -> None:
    """Refuse transforms of windows where whole images are computed at once."""
    for split in splits:
        for place, names in _pipelines(cfg.get(f'{split}_dataloader') or {}, f'{split}_dataloader'):
            opened = [name for name in names if name in TRANSFORMS]
            if opened:
                raise UserError(
                    f'{place}.pipeline: {opened[0]} opens images that are read by windows: '
                    f'{remedy}, or load the images with LoadImage'
                )


def _pipelines(loader: dict, place: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the places of the pipelines of a loader, and the names of their transforms."""
    for where, node in dicts(loader, place):
        if 'pipeline' in node:
            yield where, [class_name(transform.get('type')) for transform in node['pipeline']]


def _check_pipelines(loader: dict, place: str) -> None:
    for where, names in _pipelines(loader, place):
        if names[:1] == ['ReadWindow']:
            raise UserError(
                f'{where}.pipeline: ReadWindow reads windows, but stream computes whole images: '
                'write stream=dict(train=False, ...) to train on windows'
            )
        for name in names:
            if name not in TRANSFORMS:
                raise UserError(
                    f'{where}.pipeline: {name} needs a whole image in memory, but stream reads '
                    f'windows: use {", ".join(TRANSFORMS)} only'
                )
        if names[:1] != ['OpenImage'] or names[-1:] != ['PackScene']:
            raise UserError(
                f'{where}.pipeline: stream needs OpenImage as the first and PackScene as the last '
                f'transform, not {", ".join(names) or "no transforms"}'
            )


def _check_metrics(metrics: dict | list[dict], place: str) -> None:
    for metric in [metrics] if isinstance(metrics, dict) else metrics:
        name = class_name(metric.get('type'))
        if name not in METRICS:
            raise UserError(
                f'{place}: {name} needs whole images in memory, but stream reads windows: use '
                f'{" or ".join(METRICS)}'
            )
        if metric.get('format_only') or metric.get('output_dir'):
            raise UserError(
                f'{place}: {name} cannot write the predictions of streamed images: remove '
                'format_only and output_dir; tools/infer.py --stream writes them'
            )
