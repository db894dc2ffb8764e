"""From a config file and the command line to what the runner is given."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.runner import Runner
from mmengine.utils import is_seq_of

from ...environment import remedy
from ...errors import DependencyError, UserError, reason
from ...models.xcit import ARCHS

# What the runner reads from a config, be it in the file or not.
RUNNER_ARGUMENTS = {
    *inspect.signature(Runner.__init__).parameters,
    'activation_checkpointing',
    'compile',
    'efficient_conv_bn_eval',
    'find_unused_parameters',
    'model_wrapper_cfg',
    'sync_bn',
} - {'self', 'cfg'}
# Those that the tools rely on, for configs that do not inherit from ours.
OUR_HOOKS = dict(
    pictures=dict(type='PictureHook'),
    report=dict(type='ReportHook'),
    labels=dict(type='LabelCheckHook'),
    buffers=dict(type='BufferSyncHook'),
    finite=dict(type='FiniteHook', limit=16),
    losses=dict(type='LossLogHook'),
    bad_data=dict(type='BadDataHook'),
    interrupts=dict(type='InterruptHook'),
)
DEFAULT_HOOKS = dict(
    logger=dict(type='LoggerHook'),
    checkpoint=dict(type='CheckpointHook'),
    **OUR_HOOKS,
)
# What the tools read beside the runner.
SETTINGS = dict(
    max_bad_share=0.01,  # of the training data that may be unreadable
)
# What survives an interruption, a bad sample or a full disk, in the place of what does not.
# The config keeps the names that every tool of the field knows.
OURS = {
    'EpochBasedTrainLoop': 'ResumableEpochLoop',
    'IterBasedTrainLoop': 'ResumableIterLoop',
    'CheckpointHook': 'WholeCheckpointHook',
    'CocoDataset': 'CheckedCocoDataset',
    'LoadImageFromFile': 'LoadImage',
}
IMAGE_ARGUMENTS = {'type', 'to_float32', 'backend_args'}  # of LoadImage
NEEDED = {
    'train': ('model', 'train_dataloader', 'train_cfg', 'optim_wrapper'),
    'test': ('model', 'test_dataloader', 'test_cfg', 'test_evaluator'),
}
LIMITS = ('max_iters', 'max_epochs')  # of a training; a recipe has one of them
DEVICES_WITHOUT_AMP = ('cpu', 'mps')  # of mmengine's AmpOptimWrapper


def load_config(
    path: str | Path,
    options: Mapping[str, Any] | None = None,
    work_dir: str | None = None,
    launcher: str = 'none',
) -> Config:
    """Read a config and put in what the command line says.

    Two options go beyond replacing a value, because the value alone would leave the config
    contradicting itself: ``data_root=DIR`` moves every path that starts with the config's
    ``data_root``, and ``pretrained=WEIGHTS`` is what the backbone starts from (None: random
    weights).

    Args:
        path: The config file.
        options: Dotted names and values, as from ``--cfg-options``.
        work_dir: Where the run writes; None: ``work_dirs/<name of the config>``.
        launcher: 'none', 'pytorch', 'slurm' or 'mpi'.

    Raises:
        UserError: If the file does not exist or cannot be read, or an option names nothing
            that is read.
        DependencyError: If a package is missing that the file asks for.
    """
    path = Path(path)
    if not path.is_file():
        hint = near(path.name, [p.name for p in path.parent.glob('*.py')])
        raise UserError(f'the config {path} does not exist (looked in {Path.cwd()}){hint}')
    cfg = _read(path)
    options = dict(options or {})
    _check_names(cfg, options, path)
    data_root = options.pop('data_root', None)
    if 'pretrained' in options:
        options.update(_start_from(options['pretrained']))
    try:
        cfg.merge_from_dict(options)
    except (KeyError, IndexError, TypeError) as error:
        raise UserError(f'--cfg-options {options}: they do not fit {path}: {error}') from None
    if data_root is not None:
        _move_data(cfg, data_root, path)

    hooks = {**DEFAULT_HOOKS, **(cfg.get('default_hooks') or {})}
    # None switches a hook off; mmengine knows that of its own ones only.
    cfg.default_hooks = {k: v for k, v in hooks.items() if v is not None or k not in OUR_HOOKS}
    for name, default in SETTINGS.items():
        cfg.setdefault(name, default)
    if type(cfg.max_bad_share) not in (int, float) or not 0 <= cfg.max_bad_share <= 1:
        raise UserError(f'max_bad_share={cfg.max_bad_share!r} is no number between 0 and 1')
    cfg.launcher = launcher
    cfg.work_dir = work_dir or cfg.get('work_dir') or str(Path('work_dirs') / path.stem)
    return cfg


def require_parts(cfg: Config, task: str) -> None:
    """Refuse a config that is only a part of one, such as a file of ``configs/_base_``.

    Args:
        cfg: The config, with the options in it.
        task: 'train' or 'test'.

    Raises:
        UserError: With the name of what is missing.
    """
    for part in NEEDED[task]:
        if cfg.get(part) is None:
            raise UserError(f'the config {cfg.filename} has no {part}, which a {task} run needs')


def check_batch_size(cfg: Config) -> None:
    """Refuse a single image where BatchNorm has a map of one pixel to normalise, or none.

    Raises:
        UserError: If it is no positive number, or a head pools to 1x1, as UperNet's does, and
            one process with one image has no others to share statistics with.
    """
    batch_size = cfg.train_dataloader.get('batch_size', 1)
    if type(batch_size) is not int or batch_size < 1:
        raise UserError(f'train_dataloader.batch_size={batch_size!r} is no number of images')
    head = cfg.model.get('decode_head')
    if not isinstance(head, dict) or 1 not in head.get('pool_scales', ()):
        return
    norm = (head.get('norm_cfg') or {}).get('type')
    synchronised = (
        (norm == 'SyncBN' or cfg.get('sync_bn'))
        and cfg.launcher != 'none'
        and torch.cuda.is_available()
    )
    normalises_over_batch = norm in ('BN', 'SyncBN') and not synchronised
    if normalises_over_batch and cfg.train_dataloader.batch_size == 1:
        raise UserError(
            f'train_dataloader.batch_size=1: the BatchNorm of {head.type} behind its 1x1 pooling '
            'needs 2 images'
        )


def check_channels(cfg: Config) -> None:
    """Refuse a neck or a head that expects other channels than the backbone gives.

    PyTorch would say so at the first step, of a convolution and its weights.

    Raises:
        UserError: With the name to change and its value.
    """
    backbone = cfg.model.get('backbone') or {}
    arch = backbone.get('arch', 's12')
    if backbone.get('type') != 'XCiT' or not isinstance(arch, str) or arch not in ARCHS:
        return  # what is wrong with an arch, the backbone says
    dim = ARCHS[arch].embed_dim
    for name in ('neck',) if cfg.model.get('neck') else ('decode_head', 'auxiliary_head'):
        part = cfg.model.get(name)
        channels = part.get('in_channels') if isinstance(part, dict) else None
        fitting = type(channels)([dim] * len(channels)) if is_seq_of(channels, int) else dim
        if channels is not None and channels != fitting:
            raise UserError(
                f'model.{name}.in_channels={channels}: the maps of XCiT {arch} have {dim} '
                f'channels; write in_channels={fitting}'
            )


def limit_iterations(cfg: Config, options: Mapping[str, Any] | None = None) -> list[str]:
    """Make ``train_cfg.max_iters`` end a recipe early, to try it out, also one of epochs.

    The recipe itself, with its warm-up, stays as it is; at the end are a checkpoint and an
    evaluation, on the way some twenty lines of losses.

    Args:
        cfg: The config, with the options in it.
        options: What the command line set, which stays as it is.

    Returns:
        Sentences for the log on what was changed.

    Raises:
        UserError: If ``max_iters`` is not a positive integer.
    """
    options = options or {}
    max_iters, max_epochs = (cfg.train_cfg.get(name) for name in ('max_iters', 'max_epochs'))
    if max_iters is None or (max_epochs is None and 'train_cfg.max_iters' not in options):
        return []
    if not isinstance(max_iters, int) or max_iters < 1:
        raise UserError(f'train_cfg.max_iters={max_iters!r} is not a positive integer')
    log_interval = min(cfg.default_hooks.logger.get('interval', 10), max_iters // 20 + 1)
    trial = {
        'default_hooks.logger.interval': log_interval,
        'log_processor.window_size': log_interval,
    }
    if max_epochs is not None:
        trial |= {
            'default_hooks.checkpoint.by_epoch': False,
            'default_hooks.checkpoint.interval': max_iters,
            'log_processor.by_epoch': False,
        }
        cfg.train_cfg = dict(
            type='IterBasedTrainLoop',
            max_iters=max_iters,
            val_interval=options.get('train_cfg.val_interval', max_iters),
        )
    cfg.merge_from_dict({name: trial[name] for name in trial if name not in options})
    if max_epochs is None:
        return []
    return [f'A trial of {max_iters} iterations instead of the {max_epochs} epochs of the recipe.']


def without_amp(cfg: Config) -> list[str]:
    """Train in float32 where mmengine's mixed precision does not run.

    Returns:
        Sentences for the log on what was changed.
    """
    device = get_device()
    if device not in DEVICES_WITHOUT_AMP or cfg.optim_wrapper.type != 'AmpOptimWrapper':
        return []
    for argument in ('loss_scale', 'dtype', 'use_fsdp'):
        cfg.optim_wrapper.pop(argument, None)
    cfg.optim_wrapper.type = 'OptimWrapper'
    return [f'No GPU: training in float32 on the {device} instead of in mixed precision.']


def ours(node: Any) -> Any:
    """A copy of a part of a config with what survives more in the place of what ``OURS`` names."""
    if isinstance(node, (list, tuple)):
        return type(node)(ours(value) for value in node)
    if not isinstance(node, dict):
        return node
    replaced = ConfigDict({key: ours(value) for key, value in node.items()})
    kind = node.get('type')
    if isinstance(kind, str):
        other = OURS.get(kind.rpartition('.')[2], kind)  # mmdet.CocoDataset, too
        if other != 'LoadImage' or node.keys() <= IMAGE_ARGUMENTS:
            replaced.type = other
    return replaced


def near(name: str, choices: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of a sentence that names the closest of the choices, if one is close."""
    found = difflib.get_close_matches(name, list(choices), n=1, cutoff=cutoff)
    return f'; did you mean {found[0]}?' if found else ''


def _read(path: Path) -> Config:
    try:
        return Config.fromfile(path)
    except ImportError as error:  # of a base's package, or of custom_imports
        # Without mmengine's "please install mmsegmentation manually": onedl names it otherwise.
        missing = str(error.__cause__ or error).split(', please')[0]
        raise DependencyError(
            f'the config {path} cannot be read: {missing}. {remedy(error)}'
        ) from None
    except Exception as error:  # a config is code: anything can happen in it
        raise UserError(f'the config {path} cannot be read ({reason(error)})') from None


def _check_names(cfg: Config, options: Mapping[str, Any], path: Path) -> None:
    """Refuse what mmengine would add as a new value that nobody reads: a misspelt option.

    A new name is an error in the first place, and below it where it resembles one that is
    there: the classes have more arguments than a config shows.
    """
    for option in options:
        first, *rest = option.split('.')
        known = {*cfg.keys(), *RUNNER_ARGUMENTS, *SETTINGS, 'pretrained'}
        if first not in known:
            raise UserError(f'--cfg-options {option}: {path} has no {first}' + near(first, known))
        node = cfg.get(first)
        for name in rest:
            if not isinstance(node, dict):
                break
            known = {*node.keys(), *(LIMITS if node is cfg.get('train_cfg') else ())} - {'type'}
            slip = near(name, known, cutoff=0.85)  # dtype is none of it
            if name not in {*node, *known} and slip:
                raise UserError(f'--cfg-options {option}: {path} has no {name} there{slip}')
            node = node.get(name)


def _start_from(weights: str | None) -> dict[str, Any]:
    init_cfg = None if weights is None else dict(type='Pretrained', checkpoint=weights)
    return {'model.backbone.init_cfg': init_cfg}


def _move_data(cfg: Config, new_root: str, path: Path) -> None:
    if 'data_root' not in cfg:
        raise UserError(f'--cfg-options data_root: {path} has no data_root to replace')
    old_root = cfg.pop('data_root')
    new_root = str(new_root).rstrip('/') + '/'
    before = cfg.to_dict()

    def move(value: Any) -> Any:
        if isinstance(value, str) and value.startswith(old_root):
            return new_root + value[len(old_root) :]
        return value

    for name in cfg:
        cfg[name] = _map_values(cfg[name], move)
    if cfg.to_dict() == before:
        raise UserError(f'--cfg-options data_root: no path of {path} begins with its {old_root}')
    cfg.data_root = new_root


def _map_values(node: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(node, dict):
        return ConfigDict({key: _map_values(value, function) for key, value in node.items()})
    if isinstance(node, (list, tuple)):
        return type(node)(_map_values(value, function) for value in node)
    return function(node)
