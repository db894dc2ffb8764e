"""Train and test: what tools/train.py and tools/test.py call."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dist import is_main_process

from ..environment import require, require_one_stack
from ..errors import UserError
from ..files import require_writable, require_writable_file
from ..weights.pretrained import pretrained_weights, read_all_safely, require_file
from .config.data import check_classes, check_data
from .config.errors import config_errors
from .config.load import (
    check_batch_size,
    check_channels,
    limit_iterations,
    load_config,
    require_parts,
    without_amp,
)
from .data.workers import worker_errors
from .hooks.checkpoint import has_checkpoints, newest_checkpoint
from .hooks.report import write_metrics
from .run_lock import hold
from .runner import CheckedRunner

TEST_LOG_INTERVAL = 10  # images: a test on a CPU takes seconds for each
LAUNCHERS = (
    ('pytorch', 'RANK', 'tools/dist_train.sh or torchrun'),
    ('slurm', 'SLURM_PROCID', 'tools/slurm_train.sh or srun'),
    ('mpi', 'OMPI_COMM_WORLD_RANK', 'mpirun'),
)
RESTARTS = ('TORCHELASTIC_RESTART_COUNT', 'SLURM_RESTART_COUNT')
# Seconds that a run waits, when it is started again, for the lock of its machine that was lost:
# NFS takes 90 to see that.
PATIENCE = 120
FRAMEWORK_PARTS = ('models', 'datasets', 'evaluation', 'visualization')


def train(
    config: str,
    work_dir: str | None = None,
    resume: bool = False,
    launcher: str = 'none',
    trust_checkpoint: bool = False,
    options: Mapping[str, Any] | None = None,
    tensorboard: bool = False,
) -> None:
    """Train a model, evaluate it, and log what came out and where it is.

    Args:
        config: Path of a config file.
        work_dir: Where to write; None: ``work_dirs/<name of the config>``.
        resume: Go on from the last whole checkpoint in ``work_dir``. Otherwise what an earlier
            run left there is moved into a folder ``earlier_*``.
        launcher: 'none', 'pytorch', 'slurm' or 'mpi'.
        trust_checkpoint: Read checkpoints that hold more than weights, which runs whatever is
            in them.
        options: Dotted names and values that replace those of the config
            (see :func:`xcit_mm.engine.config.load.load_config`).
        tensorboard: Write losses and metrics for TensorBoard, too.

    Raises:
        UserError: If an input is wrong: the config, an option, the data or a checkpoint; or
            another training is running in ``work_dir``, the losses are not finite, too much of
            the data is bad, the disk is full.
        Interrupted: At SIGTERM and SIGINT, once the step is done and a checkpoint written.
    """
    cfg = load_config(config, options, work_dir, launcher)
    require_parts(cfg, 'train')
    if tensorboard:
        require('tensorboard')
        cfg.default_hooks.tensorboard = dict(type='TensorBoardHook')
    check_batch_size(cfg)
    notes = limit_iterations(cfg, options) + without_amp(cfg)
    _check(cfg, ('train', 'val'))
    restarted = not resume and _was_restarted() and has_checkpoints(cfg.work_dir)
    if restarted:
        notes.append('This process was started again: it goes on from the last checkpoint.')
    resume = resume or restarted
    if not resume and cfg.get('load_from'):
        if (options or {}).get('pretrained') is not None:
            raise UserError(
                f'pretrained={options["pretrained"]} and load_from={cfg.load_from}: the second has '
                'the weights of the backbone, too; take one (load_from=None)'
            )
        require_file(cfg.load_from)
    backbone = cfg.model.get('backbone') or {}
    if resume or cfg.get('load_from'):
        backbone['init_cfg'] = None  # every weight of it comes from the file
    else:
        notes += pretrained_weights(cfg, options or {})
    cfg.trust_checkpoint = trust_checkpoint
    if trust_checkpoint and backbone.get('type') == 'XCiT' and backbone.get('init_cfg'):
        backbone.init_cfg.trusted = True
    with ExitStack() as stack:
        # A folder to resume from is not made. Where one is refused, the launcher ends the others.
        if _is_main(cfg.launcher) and (not resume or Path(cfg.work_dir).is_dir()):
            lock = hold(Path(cfg.work_dir), PATIENCE if restarted else 0)
            notes += stack.enter_context(lock)
        if resume:
            notes += _resume(cfg, trust_checkpoint)
        with config_errors(cfg), worker_errors(), read_all_safely(trust_checkpoint):
            _build(cfg, notes).train()


def test(
    config: str,
    checkpoint: str,
    work_dir: str | None = None,
    show_dir: str | None = None,
    out: str | None = None,
    launcher: str = 'none',
    trust_checkpoint: bool = False,
    options: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Evaluate a checkpoint on the config's test set.

    Args:
        config: Path of a config file.
        checkpoint: File or URL of a released model, or of what a training of this config wrote.
        work_dir: Where the log goes; None: ``work_dirs/<name of the config>``.
        show_dir: Where to draw the prediction over every image; None: nowhere.
        out: JSON file to write the metrics to; None: none.
        launcher: 'none', 'pytorch', 'slurm' or 'mpi'.
        trust_checkpoint: Read a checkpoint that holds more than weights, which runs whatever
            is in it.
        options: Dotted names and values that replace those of the config.

    Returns:
        The metrics by name: COCO's in 0..1, segmentation's in percent.

    Raises:
        UserError: If an input is wrong: the config, an option, the data or a checkpoint.
    """
    cfg = load_config(config, options, work_dir, launcher)
    require_parts(cfg, 'test')
    _check(cfg, ('test',))
    require_file(checkpoint)
    cfg.load_from, cfg.resume, cfg.trust_checkpoint = checkpoint, False, trust_checkpoint
    if show_dir is not None:
        pictures = cfg.default_hooks.get('pictures', dict(type='PictureHook'))
        cfg.default_hooks.pictures = {**pictures, 'test_dir': show_dir}
    if out is not None:
        require_writable_file(Path(out))
    cfg.default_hooks.logger.interval = TEST_LOG_INTERVAL
    with config_errors(cfg), worker_errors(), read_all_safely(trust_checkpoint):
        runner = _build(cfg, [])
        metrics = runner.test()
    if out is not None and is_main_process():
        write_metrics(Path(out), config, checkpoint, metrics, runner.test_loop.evaluator)
        runner.logger.info('metrics     %s', out)
    return metrics


def _check(cfg: Config, splits: tuple[str, ...]) -> None:
    """What a run needs, from the quickest to the slowest; nothing is written."""
    check_channels(cfg)
    for launcher, variable, script in LAUNCHERS:
        if cfg.launcher == launcher and variable not in os.environ:
            raise UserError(f'--launcher {launcher}: no process group; start it with {script}')
    check_data(cfg, splits)
    require_one_stack()
    require('mmcv')
    for part in FRAMEWORK_PARTS:
        require(f'{cfg.default_scope}.{part}')
    if cfg.default_scope == 'mmdet':
        require('xcit_mm.datasets.coco')  # registered once mmdet is there
    check_classes(cfg, splits)


def _build(cfg: Config, notes: list[str]) -> CheckedRunner:
    for folder in (cfg.work_dir, cfg.default_hooks.get('pictures', {}).get('test_dir')):
        if folder is not None:
            require_writable(folder)
    if cfg.launcher != 'none' and not torch.cuda.is_available():
        notes.append(_without_gpus(cfg))
    runner = CheckedRunner.from_cfg(cfg)
    for note in notes:
        runner.logger.warning(note)
    return runner


def _is_main(launcher: str) -> bool:
    """Whether this process writes, asked before the processes are connected."""
    variable = next((variable for name, variable, _ in LAUNCHERS if name == launcher), None)
    return variable is None or os.environ[variable] == '0'


def _was_restarted() -> bool:
    """Whether torchrun (``--max-restarts``) or Slurm (``--requeue``) tries the same once more."""
    counts = (os.environ.get(name, '') for name in RESTARTS)
    return any(count.isdecimal() and int(count) > 0 for count in counts)


def _resume(cfg: Config, trusted: bool) -> list[str]:
    path, checkpoint, notes = newest_checkpoint(cfg.work_dir, trusted)
    cfg.resume, cfg.load_from = True, str(path)
    # What was drawn by chance, where the config names no seed; the loaders need it at once.
    cfg.randomness = {**(cfg.get('randomness') or {}), 'seed': checkpoint['meta'].get('seed')}
    return notes


def _without_gpus(cfg: Config) -> str:
    """Mmengine's own start of a distributed run asks for a CUDA device."""
    if cfg.launcher != 'pytorch':
        raise UserError(f'--launcher {cfg.launcher} needs GPUs; without them use pytorch')
    torch.distributed.init_process_group('gloo')
    cfg.model_wrapper_cfg = {
        'type': 'MMDistributedDataParallel',
        'find_unused_parameters': cfg.get('find_unused_parameters', False),
        **(cfg.get('model_wrapper_cfg') or {}),
        'device_ids': None,
    }
    cfg.pop('sync_bn', None)  # torch's SyncBatchNorm exists for GPUs only
    return 'No GPU: the processes talk through gloo, BatchNorm is not synchronised.'
