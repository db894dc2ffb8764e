"""The state of a training run in a checkpoint, verified: PyTorch and mmengine accept any."""

from collections import Counter
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from mmengine.hooks import EMAHook
from mmengine.logging import HistoryBuffer
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from torch import Tensor

from ...base.errors import UserError, one_line
from ...config.tree import nodes
from ...network.weights.names import require_same_tensors
from ..distributed import unwrapped
from .recipe import changed_places, listed_changes, recipe_of
from .regroup import regroup

AVERAGED = 'module.'  # the prefix of the averaged weights of mmengine's EMAHook
# Keys of the message hub, which is a part of a checkpoint.
BAD_DATA = 'bad_data'  # file to reason
STEP_LAYOUT = 'step_layout'  # images a step, steps an epoch
COLLAPSED_STEPS = 'collapsed_steps'  # how many in a row
SCORES = 'validation_scores'  # iteration to the metric that early stopping monitors
RECIPE = 'recipe'  # values of the config by their places, as texts
HUB = ('log_scalars', 'runtime_info', 'resumed_keys')  # the parts of mmengine's message hub
# Parts of an optimizer's state with the shape of the parameter, and those that Adam requires.
MOMENTS = ('exp_avg', 'exp_avg_sq', 'max_exp_avg_sq', 'momentum_buffer')
OF_ADAM = ('step', 'exp_avg', 'exp_avg_sq')


def require_training_state(checkpoint: Any, path: str | Path) -> None:
    """Require the parts that a run resumes from, each of the right type, or raise a UserError."""
    parts = _mapping(checkpoint)
    meta, hub, optimizer = (_mapping(parts.get(k)) for k in ('meta', 'message_hub', 'optimizer'))
    scalars, infos, resumed = (_mapping(hub.get(name)) for name in HUB)
    average = parts.get('ema_state_dict', {})
    base_settings = optimizer.get('base_param_settings', {})
    is_valid = {
        'meta.epoch': _is_count(meta.get('epoch')),
        'meta.iter': _is_count(meta.get('iter')),
        'meta.seed': _is_count(meta.get('seed', 0)) and meta.get('seed', 0) < 2**32,
        'state_dict': _is_mapping(parts.get('state_dict'), str),
        'ema_state_dict': _is_mapping(average, str, Tensor),
        'ema_state_dict.steps': getattr(_mapping(average).get('steps'), 'ndim', 0) == 0,
        **{f'message_hub.{name}': _is_mapping(hub.get(name), str) for name in HUB},
        **{
            f'message_hub.log_scalars.{k}': isinstance(v, HistoryBuffer) and len(v.data[0]) > 0
            for k, v in scalars.items()
        },
        # mmengine sets each again, and raises if the flag has changed.
        **{
            f'message_hub.resumed_keys.{key}': value is True
            or (value is False and key not in scalars and key not in infos)
            for key, value in resumed.items()
        },
        **{
            f'message_hub.runtime_info.{key}': is_valid_info(value)
            for key, value in infos.items()
            for name, is_valid_info in RUNTIME_INFOS.items()
            if str(key).startswith(name)
        },
        'optimizer.state': _is_mapping(optimizer.get('state'), int, Mapping),
        'optimizer.base_param_settings': _is_mapping(base_settings, str),
        'optimizer.param_groups': isinstance(optimizer.get('param_groups'), list),
        # A config may have none; with several optimizers they are in a mapping.
        'param_schedulers': isinstance(parts.get('param_schedulers', []), (list, Mapping)),
    }
    invalid = [one_line(name) for name, valid in is_valid.items() if not valid]
    if invalid:
        raise UserError(
            f'{path} cannot be resumed, because it holds no valid {", ".join(invalid)}; to start '
            f'from its weights: --cfg-options load_from={path}'
        )


def fit_training_state(checkpoint: Any, runner: Runner, path: str | Path) -> None:
    """Regroup the state of the optimizer as in this run, and require the rest to fit this run.

    The weights are not compared. The run must be at its start.

    Raises:
        UserError: If a part is missing or of the wrong type, or its average of the weights does not
            fit.
        ValueError: With the place where optimizer or schedulers do not fit.
    """
    require_training_state(checkpoint, path)
    if isinstance(runner.optim_wrapper, OptimWrapper):
        _fit_optimization(checkpoint, runner)
    if 'ema_state_dict' not in checkpoint:
        return
    if not any(isinstance(hook, EMAHook) for hook in runner.hooks):
        raise UserError(
            f'{path} belongs to a run that averages its weights: resume it with its '
            'default_hooks.ema options'
        )
    average = checkpoint['ema_state_dict'].items()
    average = {k.removeprefix(AVERAGED): v for k, v in average if k.startswith(AVERAGED)}
    wanted = unwrapped(runner.model).state_dict()
    require_same_tensors(average, wanted, f'{path} (ema_state_dict)')


def _fit_optimization(checkpoint: Mapping[str, Any], runner: Runner) -> None:
    """Regroup the optimizer's and the schedulers' state, and compare its types and shapes."""
    try:
        regroup(checkpoint, runner.optim_wrapper, unwrapped(runner.model))
        _require_same_optimizer(checkpoint['optimizer'], runner.optim_wrapper)
        _require_same_schedulers(checkpoint, runner)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        now = recipe_of(runner.cfg)
        before = checkpoint['message_hub']['runtime_info'].get(RECIPE, now)
        changed = changed_places(before, now)
        what = f'; changed since: {listed_changes(before, now, changed)}' if changed else ''
        raise ValueError(f'{error}{what}') from error


def _require_same_optimizer(loaded: Mapping[str, Any], wrapper: OptimWrapper) -> None:
    initial, optimizer = wrapper.state_dict(), wrapper.optimizer
    for name in ('base_param_settings', 'loss_scaler'):
        # A run without a scale of the loss ignores the scale of the checkpoint.
        if name in loaded and (name in initial or name != 'loss_scaler'):
            _require_fit(initial.get(name), loaded[name], f'optimizer.{name}')
    required = [name for name, value in optimizer.defaults.items() if not _is_flag(value)]
    groups = zip(initial['param_groups'], loaded['param_groups'], strict=True)
    for i, (group, loaded_group) in enumerate(groups):
        place = f'optimizer.param_groups.{i}'
        _require_names(required, loaded_group, place)
        _require_fit(group, loaded_group, place)
        if not all(0 <= beta < 1 for beta in loaded_group.get('betas', ())):
            raise ValueError(f'{place}.betas are not below 1')
    numbers = [number for group in loaded['param_groups'] for number in group['params']]
    tensors = [tensor for group in optimizer.param_groups for tensor in group['params']]
    for number, tensor in zip(numbers, tensors, strict=True):
        state = loaded['state'].get(number)
        if state:
            place = f'optimizer.state.{number}'
            if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
                _require_names(OF_ADAM, state, place)
            _require_fit({'step': 1, **dict.fromkeys(MOMENTS, tensor)}, state, place)
            if state.get('step', 1) < 0:  # 0 if no step has been finite
                raise ValueError(f'{place}.step is negative')


def _require_same_schedulers(checkpoint: Mapping[str, Any], runner: Runner) -> None:
    schedulers = runner.param_schedulers if isinstance(runner.param_schedulers, list) else []
    for i, loaded in enumerate(checkpoint.get('param_schedulers', [])[: len(schedulers)]):
        initial = schedulers[i].state_dict()
        for name in loaded.keys() - initial.keys():
            if hasattr(schedulers[i], str(name)):  # it would hide a method
                raise ValueError(f'param_schedulers.{i} holds {name}')
        _require_fit(initial, loaded, f'param_schedulers.{i}')


def _require_names(names: Sequence[str], loaded: Mapping[str, Any], place: str) -> None:
    missing = [name for name in names if name not in loaded]
    if missing:
        raise ValueError(f'{place} has no {" or no ".join(missing)}')


def _require_fit(initial: Any, loaded: Any, place: str) -> None:
    """Require what was loaded to fit what a run has initially, wherever both have a value."""
    expected = dict(nodes(initial, place))
    for where, value in nodes(loaded, place):
        if where in expected and not _fits(expected[where], value, where):
            raise ValueError(f'{where} is a {type(value).__name__} that does not fit')


def _fits(initial: Any, loaded: Any, place: str) -> bool:
    if isinstance(initial, bool) and 'param_groups' in place:
        return loaded is initial
    if isinstance(initial, Counter):  # the milestones of a schedule, which may be others
        return isinstance(loaded, Mapping) and all(map(_is_number, loaded.values()))
    if isinstance(initial, Real) and isinstance(loaded, Tensor) and loaded.numel() == 1:
        return _is_number(loaded)
    is_same = _kind(loaded) == _kind(initial) or (initial is None and _kind(loaded) is Real)
    if isinstance(loaded, Tensor) and loaded.ndim > 0:
        return is_same and bool(torch.isfinite(loaded).all())
    return is_same and (not isinstance(loaded, (Real, Tensor)) or _is_number(loaded))


def _kind(value: Any) -> Any:
    """Return what values must have in common for one to replace the other."""
    if isinstance(value, Tensor) and value.ndim > 0:
        return value.shape
    if _is_flag(value):
        return bool
    if isinstance(value, (Real, Tensor)):
        return Real  # a Python number, or a tensor of one
    if isinstance(value, (list, tuple)):
        return list, len(value)
    if isinstance(value, Mapping):
        return Mapping
    return value if isinstance(value, str) else type(value)


def _is_flag(value: Any) -> bool:
    """Return whether a value switches something on or off, such as ``foreach``."""
    return value is None or isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    """Return whether a value is a finite real number, or a tensor of one."""
    is_scalar = isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
    value = value.item() if is_scalar else value
    return isinstance(value, Real) and abs(value) < 2**63  # neither NaN nor beyond a float


def _mapping(value: Any) -> Mapping:
    return value if isinstance(value, Mapping) else {}


def _is_mapping(values: Any, of_keys: type, of_values: type = object) -> bool:
    return isinstance(values, Mapping) and all(
        isinstance(key, of_keys) and isinstance(value, of_values) for key, value in values.items()
    )


# What a run reads of the hub's runtime_info, by how the names start.
RUNTIME_INFOS = {
    RECIPE: lambda value: _is_mapping(value, str, str),
    BAD_DATA: lambda value: _is_mapping(value, str, str),
    STEP_LAYOUT: lambda value: _is_mapping(value, str, int),
    COLLAPSED_STEPS: _is_count,
    SCORES: lambda value: _is_mapping(value, int, float),
    'best_score': _is_number,
    'eta': _is_number,
}
