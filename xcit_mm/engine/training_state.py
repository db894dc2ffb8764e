"""Check the state of a training before a run resumes from it; PyTorch and mmengine accept any."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.logging import HistoryBuffer
from mmengine.runner import Runner
from torch import Tensor

from ..errors import UserError, one_line

# Keys of the message hub, which is a part of a checkpoint.
BAD_DATA = 'bad_data'  # file to reason
STEP_LAYOUT = 'step_layout'  # images a step, steps an epoch
RECIPE = 'recipe'  # values of the config by their places, as texts
HUB = ('log_scalars', 'runtime_info', 'resumed_keys')  # the parts of mmengine's message hub
# Parts of an optimizer's state with the shape of the parameter, and those that Adam requires.
MOMENTS = ('exp_avg', 'exp_avg_sq', 'max_exp_avg_sq', 'momentum_buffer')
OF_ADAM = ('step', 'exp_avg', 'exp_avg_sq')
# Parts of a config that decide what a training computes.
RECIPE_PARTS = ('model', 'optim_wrapper', 'param_scheduler', 'auto_scale_lr', 'train_dataloader')
# Names in them that do not: init_cfg is unset in a resumed run.
NOT_OF_RECIPE = (
    *('init_cfg', 'num_workers', 'persistent_workers', 'prefetch_factor', 'pin_memory', 'timeout'),
    *('test_cfg', 'with_cp'),
)
# Places whose values a resumed run reads from its checkpoint.
OF_CHECKPOINT = re.compile(
    r'optim_wrapper\.(optimizer|paramwise_cfg|constructor)\b|param_scheduler\b|auto_scale_lr\b'
)
MAX_CHANGES = 8  # that a sentence names
# Options of optimizers that change their speed, not their result.
SPEED_OPTIONS = ('fused', 'foreach', 'capturable', 'differentiable')


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
        **{f'message_hub.log_scalars.{k}': _is_history(v) for k, v in scalars.items()},
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
            f'{path} cannot be resumed, as it holds no valid {", ".join(invalid)}; to start from '
            f'its weights: --cfg-options load_from={path}'
        )


def recipe_of(cfg: Config) -> dict[str, str]:
    """Return the values of a config that decide what a training computes, by their places."""
    return dict(_leaves({part: cfg.get(part) for part in RECIPE_PARTS}))


def compare_recipes(
    before: Mapping[str, str], now: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Compare the recipes of a run before an interruption and after it.

    Returns sentences about what has changed, and the recipe that the run continues with.
    """
    changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    kept = {name for name in changed if OF_CHECKPOINT.match(name)}
    sentences = []
    if kept:
        sentences.append(
            f'{_changes(before, now, kept)}: this has no effect, because a resumed run keeps the '
            'learning rate, the schedule and the other options of its optimizer; to change them, '
            'start a run from the weights: --cfg-options load_from=FILE'
        )
    if changed - kept:
        sentences.append(
            f'{_changes(before, now, changed - kept)}: the steps from here on differ from those '
            'of an uninterrupted run'
        )
    continued = {name: before.get(name) if name in kept else now.get(name) for name in changed}
    return sentences, {k: v for k, v in {**now, **continued}.items() if v is not None}


def _leaves(node: Any, place: str = '') -> Iterator[tuple[str, str]]:
    if isinstance(node, (dict, list, tuple)) and node:
        for name, child in node.items() if isinstance(node, dict) else enumerate(node):
            if name not in NOT_OF_RECIPE:
                yield from _leaves(child, f'{place}.{name}'.lstrip('.'))
    elif node is not None:
        yield place, one_line(repr(node))


def _changes(before: Mapping[str, str], now: Mapping[str, str], changed: set[str]) -> str:
    """List changes. Where a type has changed, the other values of the part belong to it."""
    retyped = tuple(name.removesuffix('type') for name in changed if name.endswith('.type'))
    changes = [
        f'{name}={one_line(now.get(name, "None"))} (before: {one_line(before.get(name, "None"))})'
        for name in sorted(changed)
        if not any(name.startswith(part) and name != f'{part}type' for part in retyped)
    ]
    more = f' and {len(changes) - MAX_CHANGES} more' if len(changes) > MAX_CHANGES else ''
    return f'{", ".join(changes[:MAX_CHANGES])}{more}'


def require_same_run(checkpoint: Mapping[str, Any], runner: Runner) -> None:
    """Raise a ValueError with the place where optimizer or schedulers do not fit those of a run.

    Types and shapes are compared. The run must be at its start.
    """
    try:
        _require_same_state(checkpoint, runner)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        now = recipe_of(runner.cfg)
        before = checkpoint['message_hub']['runtime_info'].get(RECIPE, now)
        changed = {k for k in before.keys() | now.keys() if before.get(k) != now.get(k)}
        what = f'; changed since: {_changes(before, now, changed)}' if changed else ''
        raise ValueError(f'{error}{what}') from error


def _require_same_state(checkpoint: Mapping[str, Any], runner: Runner) -> None:
    loaded = checkpoint['optimizer']
    initial = runner.optim_wrapper.state_dict()
    for name in ('base_param_settings', 'loss_scaler'):
        # A run without a scale of the loss ignores that of the checkpoint.
        if name in loaded and (name in initial or name != 'loss_scaler'):
            _require_same_type(initial.get(name), loaded[name], f'optimizer.{name}')
    optimizer = runner.optim_wrapper.optimizer
    required = [name for name, value in optimizer.defaults.items() if not _is_flag(value)]
    groups = zip(initial['param_groups'], loaded['param_groups'], strict=True)
    for i, (group, loaded_group) in enumerate(groups):
        place = f'optimizer.param_groups.{i}'
        _require_names(required, loaded_group, place)
        _require_same_type(group, loaded_group, place)
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
            _require_same_type({'step': 1, **dict.fromkeys(MOMENTS, tensor)}, state, place)
            if state.get('step', 1) <= 0:
                raise ValueError(f'{place}.step is not positive')
    schedulers = runner.param_schedulers if isinstance(runner.param_schedulers, list) else []
    for i, loaded_state in enumerate(checkpoint.get('param_schedulers', [])[: len(schedulers)]):
        state = schedulers[i].state_dict()
        for name in loaded_state.keys() - state.keys():
            if hasattr(schedulers[i], str(name)):  # it would hide a method
                raise ValueError(f'param_schedulers.{i} holds {name}')
        _require_same_type(state, loaded_state, f'param_schedulers.{i}')


def _require_names(names: Sequence[str], loaded: Mapping[str, Any], place: str) -> None:
    missing = [name for name in names if name not in loaded]
    if missing:
        raise ValueError(f'{place} has no {" or no ".join(missing)}')


def _require_same_type(initial: Any, loaded: Any, place: str) -> None:
    """Require values that fit each other; a number is a Python number or a tensor of one."""
    if isinstance(initial, Mapping) and isinstance(loaded, Mapping):
        for name, value in loaded.items():
            if name in initial or isinstance(initial, Counter):
                _require_same_type(initial[name], value, f'{place}.{name}')
        return
    if isinstance(initial, (list, tuple)) and isinstance(loaded, (list, tuple)):
        is_same = len(initial) == len(loaded)
        for i, pair in enumerate(zip(initial, loaded, strict=False)):
            _require_same_type(*pair, f'{place}.{i}')
    elif isinstance(initial, Tensor) and initial.ndim > 0:
        is_tensor = isinstance(loaded, Tensor) and loaded.shape == initial.shape
        is_same = is_tensor and bool(torch.isfinite(loaded).all())
    elif _is_flag(initial):
        is_same = _is_flag(loaded) or (initial is None and _is_number(loaded))
        if isinstance(initial, bool) and 'param_groups' in place:
            is_same = loaded is initial or (is_same and place.endswith(SPEED_OPTIONS))
    elif isinstance(initial, str):
        is_same = loaded == initial
    elif isinstance(initial, (Real, Tensor)):
        is_same = _is_number(loaded) and not _is_flag(loaded)
    else:
        is_same = type(loaded) is type(initial)
    if not is_same:
        raise ValueError(f'{place} is a {type(loaded).__name__} that does not fit')


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


def _is_history(value: Any) -> bool:
    return isinstance(value, HistoryBuffer) and len(value.data[0]) > 0


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
    'best_score': _is_number,
    'eta': _is_number,
}
