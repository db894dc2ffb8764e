"""From a config file and the command line to what the runner is given."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.runner import Runner

from ..errors import UserError

# What the runner reads from a config, be it in the file or not.
RUNNER_ARGUMENTS = {
    *inspect.signature(Runner.__init__).parameters,
    'activation_checkpointing',
    'compile',
    'efficient_conv_bn_eval',
    'find_unused_parameters',
} - {'self', 'cfg'}
DEVICES_WITHOUT_AMP = ('cpu', 'mps')  # of mmengine's AmpOptimWrapper


def load_config(
    path: str | Path,
    options: Mapping[str, Any] | None = None,
    work_dir: str | None = None,
    launcher: str = 'none',
) -> Config:
    """Read a config and put in what the command line says.

    One option goes beyond replacing a value, because the value alone would leave the config
    contradicting itself: ``data_root=DIR`` moves every path that starts with the config's
    ``data_root``.

    Args:
        path: The config file.
        options: Dotted names and values, as from ``--cfg-options``.
        work_dir: Where the run writes; None: ``work_dirs/<name of the config>``.
        launcher: 'none', 'pytorch', 'slurm' or 'mpi'.

    Raises:
        UserError: If the file does not exist or an option names nothing that is read.
    """
    path = Path(path)
    if not path.is_file():
        hint = _near(path.name, [p.name for p in path.parent.glob('*.py')])
        raise UserError(f'the config {path} does not exist (looked in {Path.cwd()}){hint}')
    cfg = Config.fromfile(path)
    options = dict(options or {})
    _check_names(cfg, options, path)
    data_root = options.pop('data_root', None)
    try:
        cfg.merge_from_dict(options)
    except (KeyError, IndexError, TypeError) as error:
        raise UserError(f'--cfg-options {options}: they do not fit {path}: {error}') from None
    if data_root is not None:
        _move_data(cfg, data_root, path)

    cfg.launcher = launcher
    cfg.work_dir = work_dir or cfg.get('work_dir') or str(Path('work_dirs') / path.stem)
    return cfg


def limit_iterations(cfg: Config) -> list[str]:
    """Make ``train_cfg.max_iters`` end a recipe that counts epochs, to try it out.

    The recipe itself, with its warm-up, stays as it is; at the end are a checkpoint and an
    evaluation.

    Returns:
        Sentences for the log on what was changed.
    """
    max_iters = cfg.train_cfg.get('max_iters')
    if max_iters is None or 'max_epochs' not in cfg.train_cfg:
        return []
    max_epochs = cfg.train_cfg.max_epochs
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
    cfg.default_hooks.checkpoint.update(by_epoch=False, interval=max_iters)
    cfg.default_hooks.logger.interval = min(cfg.default_hooks.logger.interval, max_iters // 20 + 1)
    cfg.log_processor.update(by_epoch=False, window_size=cfg.default_hooks.logger.interval)
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


def _check_names(cfg: Config, options: Mapping[str, Any], path: Path) -> None:
    """Refuse what mmengine would add as a new value that nobody reads: a misspelt option.

    A new name is an error in the first place, and below it where it resembles one that is
    there: the classes have more arguments than a config shows.
    """
    for option in options:
        first, *rest = option.split('.')
        known = {*cfg.keys(), *RUNNER_ARGUMENTS}
        if first not in known:
            raise UserError(f'--cfg-options {option}: {path} has no {first}' + _near(first, known))
        node = cfg.get(first)
        for name in rest:
            if not isinstance(node, dict):
                break
            slip = _near(name, node, cutoff=0.85)
            if name not in node and slip:
                raise UserError(f'--cfg-options {option}: {path} has no {name} there{slip}')
            node = node.get(name)


def _near(name: str, choices: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of a sentence that names the closest of the choices, if one is close."""
    found = difflib.get_close_matches(name, list(choices), n=1, cutoff=cutoff)
    return f'; did you mean {found[0]}?' if found else ''


def _move_data(cfg: Config, new_root: str, path: Path) -> None:
    if 'data_root' not in cfg:
        raise UserError(f'--cfg-options data_root: {path} has no data_root to replace')
    old_root = cfg.data_root
    new_root = str(new_root).rstrip('/') + '/'

    def move(value: Any) -> Any:
        if isinstance(value, str) and value.startswith(old_root):
            return new_root + value[len(old_root) :]
        return value

    for name in cfg:
        cfg[name] = _map_values(cfg[name], move)


def _map_values(node: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(node, dict):
        return ConfigDict({key: _map_values(value, function) for key, value in node.items()})
    if isinstance(node, (list, tuple)):
        return type(node)(_map_values(value, function) for value in node)
    return function(node)
