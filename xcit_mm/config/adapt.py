"""The edits that tools make to a config.

Each edit that the command line does not ask for has a sentence for the log.
"""

from collections.abc import Mapping, Sequence
from inspect import signature
from multiprocessing import get_all_start_methods
from typing import Any

import torch
from mmengine.config import Config
from mmengine.device import get_device

from ..base.device import choose_dtype, dtype_name, multiplies_bfloat16
from ..base.errors import UserError
from ..base.launchers import cores_of_process, was_restarted
from ..base.run_files import has_checkpoints
from ..base.shipped import CONFIGS
from ..network.weights.pretrained import BACKBONES
from .aligned_maps import align_maps
from .image_classes import use_folders_as_classes
from .metainfo import fill_palettes
from .replacements import log_line, replace_classes
from .streaming import DATALOADERS, predict_in_dtype, stream_in_dtype, use_stream
from .tree import class_name, typed_nodes
from .tta import use_tta

PACKAGE = __package__.partition('.')[0]  # to be imported by mmengine

# What the configs of xcit_mm inherit; other configs get from it what they lack.
RUNTIME = CONFIGS / '_base_/default_runtime.py'
# What mmengine adds to the default hooks, and drops where a config has None.
HOOKS_OF_MMENGINE = {
    *('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint'),
}
IMAGES_SCOPE = 'mmengine'  # of pretraining, distillation and classifiers
LOGGERS = {'tensorboard': 'TensorBoardHook', 'wandb': 'WandbHook', 'mlflow': 'MLflowHook'}
# Of a dataloader: a batch_size that is still to be measured, or a num_workers to be counted.
AUTO = 'auto'
MAX_WORKERS = 8  # of a loader; each has its own copy of the annotations
TIMEOUT = 600  # seconds without a batch after which a run ends
WORKER_ARGUMENTS = ('persistent_workers', 'prefetch_factor', 'timeout')
WRAPPER = 'optim_wrapper.type'  # on the command line, OptimWrapper trains in float32
ARGUMENTS_OF_AMP = ('loss_scale', 'dtype', 'use_fsdp')
DEVICES_WITHOUT_AMP = ('cpu', 'mps')  # where mmengine's AmpOptimWrapper does not run


def adapt(cfg: Config) -> list[str]:
    """Name our classes, hooks and settings in a config that was written for mmdet or mmseg.

    Edits ``cfg`` and returns sentences for the log. A config of ``configs/`` needs no edit.
    """
    notes = log_line(replace_classes(cfg)) + align_maps(cfg) + _add_runtime(cfg) + use_stream(cfg)
    notes += _import_package(cfg)
    notes += _fill_windows(cfg) + fill_palettes(cfg)
    return notes + _without_panoptic_quality(cfg) + _adapt_workers(cfg)


def adapt_for_training(
    cfg: Config,
    options: Mapping[str, Any] | None = None,
    resume: bool | str = False,
    trust_checkpoint: bool = False,
    loggers: Sequence[str] = (),
    graphs: bool = False,
) -> list[str]:
    """Edit a config for training on this machine, and return sentences for the log.

    The ``options`` of the command line are in ``cfg`` already, and no edit overrides them.
    ``resume`` may be the checkpoint to resume from, instead of the newest one in the work dir.
    """
    options = options or {}
    notes = adapt(cfg) + use_folders_as_classes(cfg)
    cfg.default_hooks |= {name: dict(type=LOGGERS[name]) for name in loggers}
    if graphs:
        cfg.graphs = True
    use_graphs(cfg)
    notes += _limit_iterations(cfg, options) + _without_amp(cfg, options) + stream_in_dtype(cfg)
    notes += _without_gpus(cfg) + _merge_groups(cfg) + _without_fused(cfg)
    if resume is not True and was_restarted() and has_checkpoints(cfg.work_dir):
        resume = True
        notes.append('This process was restarted: it resumes from the newest checkpoint.')
    if resume:
        cfg.resume, cfg.load_from = True, None if resume is True else str(resume)
    elif cfg.get('load_from') and options.get('pretrained') is not None:
        raise UserError(
            f'pretrained={options["pretrained"]} and load_from={cfg.load_from} both hold the '
            'weights of the backbone: drop one of them (load_from=None)'
        )
    backbone = (cfg.get('model') or {}).get('backbone') or {}
    if cfg.get('resume') or cfg.get('load_from'):
        if backbone.get('init_cfg'):
            notes.append('All weights come from the checkpoint: init_cfg of the backbone is unset.')
        backbone['init_cfg'] = None
    return notes + _trust(cfg, trust_checkpoint)


def adapt_for_test(
    cfg: Config,
    checkpoint: str,
    show_dir: str | None = None,
    errors_dir: str | None = None,
    trust_checkpoint: bool = False,
    tta: bool = False,
    dtype: str | None = None,
    compiled: bool = False,
) -> list[str]:
    """Edit a config for the evaluation of a checkpoint, and return sentences for the log.

    ``show_dir`` is a folder for a picture of every prediction, ``errors_dir`` one for tables of the
    errors, ``tta`` test-time augmentation, ``dtype`` and ``compiled`` as for
    :func:`xcit_mm.load_model`.
    """
    is_streamed = cfg.get('stream') is not None
    if is_streamed and tta:
        raise UserError('--tta merges whole predictions, but stream has windows: leave it out')
    predict_in = predict_in_dtype if is_streamed else _use_fused_layers
    notes = adapt(cfg) + use_folders_as_classes(cfg) + _without_gpus(cfg)
    notes += predict_in(cfg, dtype, compiled)
    if tta and cfg.get('test_dataloader') and cfg.get('model'):  # check refuses other configs
        notes += use_tta(cfg)
    if cfg.get('default_scope') == IMAGES_SCOPE and (cfg.get('model') or {}).pop('teacher', None):
        notes.append('model.teacher is unset: only a training needs it.')
    cfg.load_from, cfg.resume = checkpoint, False
    folders = dict(pictures=('PictureHook', show_dir), errors=('ModelErrorsHook', errors_dir))
    for name, (kind, folder) in folders.items():
        if folder is not None:
            hook = cfg.default_hooks.get(name, dict(type=kind))
            cfg.default_hooks[name] = {**hook, 'test_dir': folder}
    return notes + _trust(cfg, trust_checkpoint)


def _import_package(cfg: Config) -> list[str]:
    """Import xcit_mm in the config that is written to the work dir, so that others find XCiT."""
    imports = cfg.get('custom_imports') or {}
    modules = imports.get('imports', [])
    modules = [modules] if isinstance(modules, str) else [*modules]
    kind = ((cfg.get('model') or {}).get('backbone') or {}).get('type')
    if class_name(kind) != 'XCiT' or PACKAGE in modules:
        return []
    cfg.custom_imports = dict(imports, imports=[PACKAGE, *modules])
    return [f'custom_imports has {PACKAGE} now: tools of other packages find XCiT only with it.']


def _add_runtime(cfg: Config) -> list[str]:
    """Add the runner, the hooks and the limit of bad data that a config lacks."""
    runtime, notes = Config.fromfile(RUNTIME), []
    if cfg.get('runner_type') != runtime.runner_type:
        cfg.runner_type = runtime.runner_type
        notes.append(f'The runner is {runtime.runner_type}.')
    hooks = cfg.get('default_hooks') or {}
    defaults = {name: dict(type=hook.type) for name, hook in runtime.default_hooks.items()}
    added = [name for name in defaults if name not in hooks]
    if added:
        notes.append(f'The default hooks of xcit_mm are added: {", ".join(added)}.')
    cfg.default_hooks = {
        name: hook
        for name, hook in {**defaults, **hooks}.items()
        if hook is not None or name in HOOKS_OF_MMENGINE
    }
    if 'max_bad_share' not in cfg:
        cfg.max_bad_share = runtime.max_bad_share
        notes.append(f'max_bad_share={cfg.max_bad_share} is added.')
    return notes


def _without_panoptic_quality(cfg: Config) -> list[str]:
    """Remove the metric of segments if a panoptic model only detects objects."""
    test_cfg = (cfg.get('model') or {}).get('test_cfg') or {}
    notes = []
    for name in ('val_evaluator', 'test_evaluator'):
        metrics = cfg.get(name)
        if not test_cfg.get('panoptic_on', True) and isinstance(metrics, list):
            cfg[name] = [metric for metric in metrics if metric.type != 'PanopticQualityMetric']
            if len(cfg[name]) < len(metrics):
                notes.append(f'{name} has no PanopticQualityMetric: panoptic_on=False.')
    return notes


def _fill_windows(cfg: Config) -> list[str]:
    """Give pixels without data in windows of scenes the values that they have in a prediction.

    They are ``nan`` of the bands, or the mean, which the preprocessor makes zero.
    """
    preprocessor = (cfg.get('model') or {}).get('data_preprocessor') or {}
    mean, notes = preprocessor.get('mean'), set()
    for _, node in typed_nodes(cfg.get('train_dataloader') or {}):
        if class_name(node['type']) != 'ReadWindow' or node.get('fill') is not None:
            continue
        bands = node.get('bands') or {}
        channels, nan = bands.get('channels', 3), bands.get('nan')
        if nan is not None:
            node.fill = [nan] * channels
            notes.add('ReadWindow.fill is nan of its bands.')
        elif mean:
            fill = list(mean) * (channels if len(mean) == 1 else 1)
            is_bgr = not bands and not preprocessor.get('bgr_to_rgb')
            node.fill = fill[::-1] if is_bgr else fill
            notes.add('ReadWindow.fill is the mean of data_preprocessor.')
    return sorted(notes)


def _adapt_workers(cfg: Config) -> list[str]:
    """Start data workers from a process without threads, and limit the wait for them."""
    notes = []
    processes = (cfg.get('env_cfg') or {}).get('mp_cfg') or {}
    method, offered = processes.get('mp_start_method', 'fork'), get_all_start_methods()
    if 'forkserver' not in offered and method != 'spawn':
        cfg.merge_from_dict({'env_cfg.mp_cfg.mp_start_method': 'spawn'})
        notes.append('Each data worker is a new process: this system has no fork server.')
    elif method == 'fork':
        cfg.merge_from_dict({'env_cfg.mp_cfg.mp_start_method': 'forkserver'})
        notes.append('A fork server starts the data workers: a fork with threads may hang.')
    for name in DATALOADERS:
        loader = cfg.get(name)
        if not isinstance(loader, dict):
            continue
        if loader.get('num_workers', 0) != 0:
            if 'timeout' not in loader:
                loader.timeout = TIMEOUT
                notes.append(f'{name}.timeout={TIMEOUT} is added.')
            continue
        unused = [argument for argument in WORKER_ARGUMENTS if loader.pop(argument, None)]
        if unused:  # PyTorch refuses them
            notes.append(f'{name} has no workers: {", ".join(unused)} unset.')
    return notes


def use_graphs(cfg: Config) -> None:
    """Add the hook that ``graphs=True`` in a config stands for."""
    hooks = cfg.get('default_hooks') or {}
    if cfg.get('graphs') and hooks.get('graphs') is None:
        cfg.default_hooks = {**hooks, 'graphs': dict(type='GraphsHook')}


def fit_loaders(cfg: Config) -> list[str]:
    """Choose the number of workers that is ``'auto'``, and pin the memory of batches for a GPU.

    Edits ``cfg`` for this machine, which the config that a run was started with may not know, and
    returns sentences for the log. A number in the config stays as it is.
    """
    loaders = {name: cfg[name] for name in DATALOADERS if isinstance(cfg.get(name), dict)}
    notes = []
    counted = [name for name, loader in loaders.items() if loader.get('num_workers') == AUTO]
    if counted:
        cores = cores_of_process(cfg.get('launcher', 'none'))
        workers = min(cores, MAX_WORKERS)
        for name in counted:
            loaders[name]['num_workers'] = workers
        names = ', '.join(counted)
        notes.append(f'{names}: num_workers={workers}, because a process may use {cores} cores.')
    unpinned = [name for name, loader in loaders.items() if 'pin_memory' not in loader]
    if torch.cuda.is_available() and unpinned:
        for name in unpinned:
            loaders[name]['pin_memory'] = True
        notes.append(f'{", ".join(unpinned)}: pin_memory=True, for copies that do not wait.')
    return notes


def _limit_iterations(cfg: Config, options: Mapping[str, Any]) -> list[str]:
    """End a recipe early at ``train_cfg.max_iters``; its schedule stays as it is.

    The trial ends with a checkpoint and an evaluation, and logs the losses about twenty times.
    """
    train_cfg = cfg.get('train_cfg') or {}
    max_iters, max_epochs = (train_cfg.get(name) for name in ('max_iters', 'max_epochs'))
    is_limited = max_epochs is not None or 'train_cfg.max_iters' in options
    if type(max_iters) is not int or not is_limited:  # check refuses other types
        return []
    trial, notes = {}, []
    if cfg.default_hooks.logger is not None and 'default_hooks.logger.interval' not in options:
        interval = min(cfg.default_hooks.logger.get('interval', 10), max_iters // 20 + 1)
        trial['default_hooks.logger.interval'] = trial['log_processor.window_size'] = interval
        notes.append(f'default_hooks.logger.interval={interval}: the run is short.')
    if max_epochs is not None:
        trial['log_processor.by_epoch'] = False
        if cfg.default_hooks.checkpoint is not None:
            trial['default_hooks.checkpoint.by_epoch'] = False
            trial['default_hooks.checkpoint.interval'] = max_iters
        cfg.train_cfg = dict(
            type='ResumableIterLoop',
            max_iters=max_iters,
            val_interval=options.get('train_cfg.val_interval', max_iters),
        )
        notes.append(f'This is a trial of {max_iters} iterations, not the {max_epochs} epochs.')
        warm_up = max(
            (
                scheduler.get('end', 0)
                for _, scheduler in typed_nodes(cfg.get('param_scheduler') or [], '')
                if class_name(scheduler['type']) == 'LinearLR'
                and not scheduler.get('by_epoch', True)
            ),
            default=0,
        )
        if warm_up > max_iters:
            notes.append(f'It learns little: the warm-up takes {warm_up} iterations.')
    cfg.merge_from_dict({name: trial[name] for name in trial if name not in options})
    return notes


def _without_amp(cfg: Config, options: Mapping[str, Any]) -> list[str]:
    device, wrapper = get_device(), cfg.get('optim_wrapper') or {}
    is_mixed = wrapper.get('type') == 'AmpOptimWrapper'
    if (device in DEVICES_WITHOUT_AMP and is_mixed) or options.get(WRAPPER) == 'OptimWrapper':
        for argument in ARGUMENTS_OF_AMP:
            wrapper.pop(argument, None)
    if device not in DEVICES_WITHOUT_AMP or not is_mixed:
        return []
    if device == 'cpu' and multiplies_bfloat16():
        wrapper.type = 'CPUAmpOptimWrapper'
        return [
            'No GPU: training in bfloat16 on the CPU; --cfg-options '
            'optim_wrapper.type=OptimWrapper trains in float32.'
        ]
    wrapper.type = 'OptimWrapper'
    return [f'No GPU: training in float32 on the {device} instead of in mixed precision.']


def _merge_groups(cfg: Config) -> list[str]:
    """Merge the groups of the optimizer, unless the config names a constructor."""
    wrapper = cfg.get('optim_wrapper')
    is_default = isinstance(wrapper, dict) and wrapper.get('constructor') is None
    if not is_default or not wrapper.get('paramwise_cfg'):
        return []
    wrapper.constructor = 'MergedGroupsConstructor'
    return [
        f'optim_wrapper.constructor={wrapper.constructor}: parameters of equal options are in one '
        'group of the optimizer, with the same results.'
    ]


def _without_fused(cfg: Config) -> list[str]:
    """Drop ``fused``, which the recipes give to AdamW, for an optimizer without fused kernels."""
    optimizer = (cfg.get('optim_wrapper') or {}).get('optimizer') or {}
    name = class_name(optimizer.get('type'))
    kind = getattr(torch.optim, name or '', None)  # others keep their arguments
    if 'fused' not in optimizer or kind is None or 'fused' in signature(kind).parameters:
        return []
    del optimizer['fused']
    return [f'optim_wrapper.optimizer.fused is unset: {name} has no such argument.']


def _without_gpus(cfg: Config) -> list[str]:
    """Make mmengine wrap the model for a distributed run without CUDA devices."""
    if cfg.launcher == 'none' or torch.cuda.is_available():
        return []
    if cfg.get('stream') is None:  # which has a wrapper
        cfg.model_wrapper_cfg = {
            'type': 'MMDistributedDataParallel',
            'find_unused_parameters': cfg.get('find_unused_parameters', False),
            **(cfg.get('model_wrapper_cfg') or {}),
            'device_ids': None,
        }
    cfg.pop('sync_bn', None)  # torch's SyncBatchNorm needs GPUs
    return ['No GPU: the processes communicate through gloo, BatchNorm is not synchronized.']


def _use_fused_layers(cfg: Config, dtype: str | None, compiled: bool) -> list[str]:
    """Predict with fused layers in a dtype in the test loop."""
    computed = dtype_name(choose_dtype(dtype, torch.device(get_device())))
    loop = cfg.get('test_cfg') or {}
    if loop.keys() - {'type', '_scope_'} or loop.get('type', 'TestLoop') != 'TestLoop':
        if dtype is None and not compiled:
            return [f'Layers are not fused, because test_cfg is {dict(loop)}.']
        raise UserError(
            f"--dtype and --compile need mmengine's test loop, but test_cfg={dict(loop)}: set it "
            "to dict(type='TestLoop')"
        )
    cfg.test_cfg = dict(type='FusedTestLoop', dtype=computed, compiled=compiled)
    return [f'The model computes in {computed}.']


def _trust(cfg: Config, trusted: bool) -> list[str]:
    cfg.trust_checkpoint = trusted
    if not trusted:
        return []
    backbone = (cfg.get('model') or {}).get('backbone') or {}
    if backbone.get('type') in BACKBONES and backbone.get('init_cfg'):
        backbone.init_cfg.trusted = True
    if cfg.get('default_scope') == IMAGES_SCOPE and cfg.model.get('teacher'):
        cfg.model.teacher.trusted = True
    return ['Checkpoints are trusted: code that they hold is run.']
