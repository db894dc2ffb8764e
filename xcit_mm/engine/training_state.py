"""What a checkpoint holds beside the weights, checked before a run goes on from it.

:func:`require_training_state` looks at the checkpoint alone, :func:`require_same_run` compares it
with the run. PyTorch and mmengine take whatever is there, and fail hours later, or do something
else.
"""

import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner import Runner
from torch import Tensor
from torch.optim import Optimizer

from ..errors import UserError, one_line

MAX_NAME = 1000  # characters of the name of a logged value
LARGEST = 2**63
HUB = ('log_scalars', 'runtime_info', 'resumed_keys')  # the parts of mmengine's message hub
# In the state of an optimizer: of the shape of the parameter, and without which Adam fails.
MOMENTS = ('exp_avg', 'exp_avg_sq', 'max_exp_avg_sq', 'momentum_buffer')
OF_ADAM = ('step', 'exp_avg', 'exp_avg_sq')
# Options of optimizers that change how fast they are, and not what they compute.
HOW_FAST = ('fused', 'foreach', 'capturable', 'differentiable')


def require_training_state(checkpoint: Any, path: str | Path) -> None:
    """Make sure that a run can go on from what a checkpoint holds.

    Args:
        checkpoint: As mmengine's runner writes it: the epoch and the iteration, the weights, the
            message hub, the state of the optimizer and that of the schedulers.
        path: Of the file, for the error.

    Raises:
        UserError: If not, with the part that is missing or of a wrong kind.
    """
    parts = checkpoint if isinstance(checkpoint, Mapping) else {}
    meta, hub, optimizer = (_mapping(parts.get(k)) for k in ('meta', 'message_hub', 'optimizer'))
    scalars, infos, resumed = (_mapping(hub.get(name)) for name in HUB)
    average = parts.get('ema_state_dict', {})
    schedulers = parts.get('param_schedulers', [])  # a config may have none
    groups = schedulers.values() if isinstance(schedulers, Mapping) else [schedulers]
    needed = {
        'meta.epoch': _is_count(meta.get('epoch')),
        'meta.iter': _is_count(meta.get('iter')),
        'meta.seed': _is_count(meta.get('seed', 0)) and meta.get('seed', 0) < 2**32,
        'state_dict': isinstance(parts.get('state_dict'), Mapping),
        'ema_state_dict': _are(average, _is_name, _is_tensor),
        'ema_state_dict.steps': getattr(_mapping(average).get('steps'), 'ndim', 0) == 0,
        **{f'message_hub.{name}': _are(hub.get(name), _is_name, _is_any) for name in HUB},
        **{f'message_hub.log_scalars.{k}': _is_history(v) for k, v in scalars.items()},
        # mmengine sets them again, and raises if it is to something else.
        **{
            f'message_hub.resumed_keys.{key}': value is True
            or (value is False and key not in scalars and key not in infos)
            for key, value in resumed.items()
        },
        **{
            f'message_hub.runtime_info.{key}': is_valid(value)
            for key, value in infos.items()
            for name, is_valid in INFOS.items()
            if str(key).startswith(name)
        },
        'optimizer.state': _are(optimizer.get('state'), _is_count, _is_mapping),
        'optimizer.param_groups': _is_list_of_mappings(optimizer.get('param_groups')),
        'optimizer.loss_scaler': _is_mapping(optimizer.get('loss_scaler', {})),
        'optimizer.base_param_settings': _is_mapping(optimizer.get('base_param_settings', {})),
        'param_schedulers': all(map(_is_list_of_mappings, groups)),
    }
    lacking = [one_line(name) for name, is_there in needed.items() if not is_there]
    if lacking:
        raise UserError(
            f'{path} cannot be resumed, as it holds no valid {", ".join(lacking)}; to start from '
            f'its weights: --cfg-options load_from={path}'
        )


def require_same_run(checkpoint: Mapping[str, Any], runner: Runner) -> None:
    """Compare the state of the optimizer and the schedules with that of a run that is resumed.

    Args:
        checkpoint: As of :func:`require_training_state`.
        runner: With its optimizer and schedules, which are at their beginning.

    Raises:
        ValueError: If they differ in kind, with the place.
    """
    loaded = checkpoint['optimizer']
    begin = runner.optim_wrapper.state_dict()
    for name in ('base_param_settings', 'loss_scaler'):
        # A run may go on without a scale for the loss, which is then left out.
        if name in loaded and (name in begin or name != 'loss_scaler'):
            _require_alike(begin.get(name), loaded[name], f'optimizer.{name}')
    optimizer = runner.optim_wrapper.optimizer
    needed = [name for name, value in optimizer.defaults.items() if not _is_option(value)]
    groups = zip(begin['param_groups'], loaded['param_groups'], strict=True)
    for i, (group, other) in enumerate(groups):
        place = f'optimizer.param_groups.{i}'
        if any(name not in other for name in needed):
            raise ValueError(f'{place} has no {" or no ".join(needed)}')
        _require_alike(group, other, place)
        for name, value in group.items():
            changes_result = name not in HOW_FAST and isinstance(value, bool)
            if changes_result and other.get(name, value) is not value:
                raise ValueError(f'{place}.{name} is {other[name]}')
        if not all(0 <= beta < 1 for beta in other.get('betas', ())):
            raise ValueError(f'{place}.betas are not below 1')
    numbers = [number for group in loaded['param_groups'] for number in group['params']]
    tensors = [tensor for group in optimizer.param_groups for tensor in group['params']]
    for number, tensor in zip(numbers, tensors, strict=True):
        place = f'optimizer.state.{number}'
        _require_moments(loaded['state'].get(number, {}), tensor, optimizer, place)
    schedules = runner.param_schedulers if isinstance(runner.param_schedulers, list) else []
    for i, other in enumerate(checkpoint.get('param_schedulers', [])[: len(schedules)]):
        state = schedules[i].state_dict()
        for name in other.keys() - state.keys():
            if hasattr(schedules[i], str(name)):  # a method, which it would hide
                raise ValueError(f'param_schedulers.{i} holds {name}')
        _require_alike(state, other, f'param_schedulers.{i}')


def _require_moments(
    state: Mapping[str, Any], tensor: Tensor, optimizer: Optimizer, place: str
) -> None:
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)) and state:
        if any(name not in state for name in OF_ADAM):
            raise ValueError(f'{place} has no {" or no ".join(OF_ADAM)}')
        if not _is_number(state['step']) or state['step'] <= 0:
            raise ValueError(f'{place}.step is not a number of steps')
    for name, value in state.items():
        if value is None:  # of SGD without momentum
            continue
        if isinstance(value, np.ndarray):
            raise ValueError(f'{place}.{name} is an array, not a tensor')
        if name in MOMENTS and getattr(value, 'shape', None) != tensor.shape:
            raise ValueError(f'{place}.{name} does not have the shape {tuple(tensor.shape)}')
        if name in MOMENTS and not torch.isfinite(value).all():
            raise ValueError(f'{place}.{name} holds numbers that are infinite or NaN')


def _require_alike(begin: Any, loaded: Any, place: str) -> None:
    """Raise ValueError if what is loaded is of another kind than what the run begins with."""
    if isinstance(begin, Mapping) and isinstance(loaded, Mapping):
        for name, value in loaded.items():
            if name in begin or isinstance(begin, Counter):
                _require_alike(begin[name], value, f'{place}.{name}')
        return
    if isinstance(begin, (list, tuple)) and isinstance(loaded, (list, tuple)):
        is_alike = len(begin) == len(loaded)
        for i, pair in enumerate(zip(begin, loaded, strict=False)):
            _require_alike(*pair, f'{place}.{i}')
    elif _is_option(begin):
        is_alike = _is_option(loaded) or (begin is None and _is_number(loaded))
    elif isinstance(begin, str):
        is_alike = isinstance(loaded, str) and loaded == begin
    elif isinstance(begin, (Real, Tensor)):
        is_alike = _is_number(loaded) and not _is_option(loaded)
    else:
        is_alike = type(loaded) is type(begin)
    if not is_alike:
        raise ValueError(f'{place} is a {type(loaded).__name__} that does not fit')


def _is_option(value: Any) -> bool:
    """What an optimizer may have or not, such as ``foreach``."""
    return value is None or isinstance(value, bool)


def _mapping(value: Any) -> Mapping:
    return value if isinstance(value, Mapping) else {}


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _is_number(value: Any) -> bool:
    """Whether it is a real number, or a tensor of one, and neither infinite nor NaN."""
    is_one = isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
    value = value.item() if is_one else value
    return isinstance(value, Real) and -LARGEST < value < LARGEST


def _is_name(value: Any) -> bool:
    """Names are printed with every line of the log."""
    is_short = isinstance(value, str) and len(value) <= MAX_NAME
    return is_short and not any(unicodedata.category(c) == 'Cc' for c in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_any(value: Any) -> bool:
    return True


def _is_history(value: Any) -> bool:
    return isinstance(value, HistoryBuffer) and len(value.data[0]) > 0


def _are(values: Any, is_key: Callable, is_value: Callable) -> bool:
    """Whether they are a mapping of such keys to such values."""
    is_valid = isinstance(values, Mapping) and all(map(is_key, values))
    return is_valid and all(map(is_value, values.values()))


def _is_list_of_mappings(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_mapping, value))


# What runs read of the message hub's runtime_info, by how its names begin.
INFOS = {
    'bad_data': lambda value: _are(value, _is_text, _is_text),
    'share_of_the_data': lambda value: _are(value, _is_name, _is_count),
    'best_score': _is_number,
    'eta': _is_number,
}
