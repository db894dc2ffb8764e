"""The rules for a config: what would fail later is refused here. Nothing is edited."""

import os
from importlib.util import find_spec

import torch
from mmengine.config import Config

from ..base.environment import BUILT_ON, require, require_framework
from ..base.errors import UserError, did_you_mean
from ..base.launchers import LAUNCHERS
from ..base.run_files import require_checkpoints
from ..network.weights.pretrained import require_file
from .adapt import AUTO, LOGGERS
from .channel_rules import check_image_channels, check_map_channels
from .data_rules import check_classes, check_data
from .draft import check_draft
from .height_rules import check_heights
from .image_rules import check_images
from .stream_rules import check_stream, streams_training
from .tree import class_name, typed_nodes

REQUIRED = {
    'train': ('model', 'train_dataloader', 'train_cfg', 'optim_wrapper'),
    'test': ('model', 'test_dataloader', 'test_cfg', 'test_evaluator'),
    'prediction': ('model', 'test_dataloader'),
}
METRICS_WITH_ERRORS = ('CocoAPMetric', 'ClassIoUMetric', 'AccuracyMetric')
SPLITS = {'train': ('train', 'val'), 'test': ('test',)}


def check(cfg: Config, task: str) -> list[str]:
    """Check what a run ('train' or 'test') needs, from the quickest check to the slowest.

    Returns sentences on the data for the log.
    """
    require_parts(cfg, task)
    check_scope(cfg)
    _check_launcher(cfg.launcher)
    if type(cfg.max_bad_share) not in (int, float) or not 0 <= cfg.max_bad_share <= 1:
        raise UserError(f'max_bad_share={cfg.max_bad_share!r} is not a number from 0 to 1')
    if task == 'train':
        check_counts(cfg)
        check_recipe(cfg)
        check_single_images(cfg)
    check_heights(cfg, SPLITS[task])
    check_stream(cfg, SPLITS[task])
    check_map_channels(cfg)
    check_class_weights(cfg)
    check_image_channels(cfg, SPLITS[task])
    check_draft(cfg)
    for name in LOGGERS.keys() & cfg.default_hooks.keys():
        require(name)
    if task == 'test':
        check_errors(cfg)
    if cfg.get('resume') and not cfg.get('load_from'):
        require_checkpoints(cfg.work_dir)
    remarks = check_data(cfg, SPLITS[task])
    require_framework(cfg.default_scope)
    check_classes(cfg, SPLITS[task])
    if task == 'train':
        check_images(cfg)
    if cfg.get('load_from'):
        require_file(cfg.load_from, trusted=cfg.get('trust_checkpoint', False))
    return remarks


def require_parts(cfg: Config, task: str) -> None:
    """Refuse a config that is only a part of one, such as a file of ``configs/_base_``."""
    for part in REQUIRED[task]:
        if cfg.get(part) is None:
            raise UserError(f'the config {cfg.filename} has no {part}, which a {task} run needs')


def check_scope(cfg: Config) -> None:
    """Refuse a framework that is not installed, because of its name rather than as a package."""
    scope = cfg.get('default_scope')
    if not isinstance(scope, str) or (scope not in BUILT_ON and find_spec(scope) is None):
        raise UserError(
            f'the config {cfg.filename}: default_scope={scope!r} is not one of '
            f'{", ".join(BUILT_ON)}{did_you_mean(str(scope), BUILT_ON)}'
        )


def check_counts(cfg: Config) -> None:
    """Refuse a length of a training run or of a batch that is not a positive integer."""
    counts = {
        'optim_wrapper.accumulative_counts': cfg.optim_wrapper.get('accumulative_counts'),
        'train_cfg.max_iters': cfg.train_cfg.get('max_iters'),
        'train_cfg.max_epochs': cfg.train_cfg.get('max_epochs'),
        'train_dataloader.batch_size': cfg.train_dataloader.get('batch_size'),
    }
    if counts['train_dataloader.batch_size'] == AUTO:
        _check_auto(cfg, counts.pop('optim_wrapper.accumulative_counts'))
        del counts['train_dataloader.batch_size']
    for name, count in counts.items():
        if count is not None and (type(count) is not int or count < 1):
            raise UserError(f'{name}={count!r} is not a positive integer')


def _check_auto(cfg: Config, counts: int | None) -> None:
    """Refuse to measure the batch size if there is no recipe or another option decides it."""
    place = f'train_dataloader.batch_size={AUTO}'
    base = (cfg.get('auto_scale_lr') or {}).get('base_batch_size')
    if type(base) is not int or base < 1:
        raise UserError(
            f'{place} needs auto_scale_lr.base_batch_size, the number of images in an update of '
            f'the recipe: base_batch_size={base!r} is not a positive integer'
        )
    if counts not in (None, 1):
        raise UserError(
            f'optim_wrapper.accumulative_counts={counts!r} does not go with {place}, which chooses '
            'it: leave it out, or write a batch_size'
        )
    if cfg.get('stream') is not None:
        raise UserError(
            f'{place} does not go with stream, which computes one image at a time: write 1'
        )


def check_recipe(cfg: Config) -> None:
    """Refuse recipe options that mmengine would ignore, or fail on once the model is built."""
    wrapper = cfg.optim_wrapper
    decay = (wrapper.get('paramwise_cfg') or {}).get('layer_decay')
    constructor = class_name(wrapper.get('constructor'))
    if decay is not None and constructor != 'LayerDecayConstructor':
        raise UserError(
            f'optim_wrapper.paramwise_cfg.layer_decay={decay!r} needs '
            'optim_wrapper.constructor=LayerDecayConstructor'
        )
    for name, hook in cfg.default_hooks.items():
        if hook and 'type' not in hook:
            raise UserError(
                f'default_hooks.{name} has no type: add one, as in default_hooks.ema.type=EMAHook'
            )
    for place, hook in (
        *typed_nodes(cfg.default_hooks, 'default_hooks'),
        *typed_nodes(cfg.get('custom_hooks') or [], 'custom_hooks'),
    ):
        momentum = hook.get('momentum', 0.0002)
        is_share = type(momentum) in (int, float) and 0 < momentum < 1
        if 'EMAHook' in class_name(hook['type']) and not is_share:
            raise UserError(
                f'{place}.momentum={momentum!r} is not between 0 and 1; it is the weight of the '
                'newest parameters, such as 0.0002'
            )


def check_errors(cfg: Config) -> None:
    """Refuse --errors if no metric counts errors."""
    metrics = [class_name(node['type']) for _, node in typed_nodes(cfg.test_evaluator)]
    folder = (cfg.default_hooks.get('errors') or {}).get('test_dir')
    if folder is not None and not set(metrics) & set(METRICS_WITH_ERRORS):
        raise UserError(
            f'--errors {folder}: {" and ".join(metrics)} of test_evaluator counts no errors, only '
            f'{", ".join(METRICS_WITH_ERRORS)} do: leave out --errors, or use one of them'
        )


def check_single_images(cfg: Config) -> None:
    """Refuse batches of one image for the BatchNorm of a head that pools to 1x1, as UperNet's.

    Streamed images leave BatchNorm in evaluation mode.
    """
    head = cfg.model.get('decode_head')
    if streams_training(cfg) or not isinstance(head, dict) or 1 not in head.get('pool_scales', ()):
        return
    norm = (head.get('norm_cfg') or {}).get('type')
    on_gpus = cfg.launcher != 'none' and torch.cuda.is_available()
    is_synchronized = on_gpus and (norm == 'SyncBN' or cfg.get('sync_bn'))
    is_single = cfg.train_dataloader.get('batch_size', 1) == 1
    if norm in ('BN', 'SyncBN') and is_single and not is_synchronized:
        raise UserError(
            f'train_dataloader.batch_size=1: the BatchNorm of {head.type} after its 1x1 pooling '
            'needs 2 images'
        )


def check_class_weights(cfg: Config) -> None:
    """Refuse a Mask2Former whose weights of classes are not one for each, and one for no object."""
    for name in ('decode_head', 'panoptic_head'):
        head = cfg.model.get(name)
        if not isinstance(head, dict) or 'num_things_classes' not in head:
            continue
        number = head.num_things_classes + head.get('num_stuff_classes', 0)
        weights = (head.get('loss_cls') or {}).get('class_weight') or [1.0] * (number + 1)
        if len(weights) != number + 1:
            raise UserError(
                f'model.{name}.loss_cls.class_weight has {len(weights)} numbers: write '
                f'{number + 1}, one for each of the {number} classes and one for no object'
            )


def _check_launcher(launcher: str) -> None:
    if launcher == 'none':
        return
    variable, command = LAUNCHERS[launcher]
    if variable not in os.environ:
        raise UserError(f'--launcher {launcher}: no process group; start it with {command}')
    if launcher != 'pytorch' and not torch.cuda.is_available():
        raise UserError(f'--launcher {launcher} needs GPUs; without them use pytorch')
