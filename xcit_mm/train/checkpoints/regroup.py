"""The state of an optimizer, moved into the groups of parameters of another run."""

from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.optim import OptimWrapper
from torch import nn

# Options of optimizers that change their speed, not their result.
SPEED_OPTIONS = ('fused', 'foreach', 'capturable', 'differentiable')
# Of the schedulers: lists with a value for each group, and one for mmengine's base_param_settings.
LISTS_BY_GROUP = ('base_values', '_last_value', 'min_values')


def regroup(checkpoint: Mapping[str, Any], wrapper: OptimWrapper, model: nn.Module) -> None:
    """Rearrange a checkpoint's optimizer state into the groups and speed options of this run.

    A run has a group for each parameter, or merged groups; see
    :class:`~xcit_mm.train.parameter_groups.MergedGroupsConstructor`. Parameters are recognized by
    their names in merged groups, and by their order in groups of one. Other groups stay as they
    are.

    Args:
        checkpoint: Its ``optimizer`` and ``param_schedulers`` are edited.
        wrapper: The optimizer of this run.
        model: The model of this run.

    Raises:
        ValueError: If a group of this run has parameters whose options differ in the checkpoint,
            or if the runs train different parameters.
    """
    saved, groups = checkpoint['optimizer'], wrapper.optimizer.param_groups
    names = {parameter: name for name, parameter in model.named_parameters()}
    wanted = [[names[parameter] for parameter in group['params']] for group in groups]
    numbers = _numbers_by_name(saved['param_groups'], names.values(), wanted)
    if numbers is not None:
        _move(checkpoint, wrapper, wanted, numbers)
    for group, loaded in zip(groups, saved['param_groups'], strict=False):  # checked afterwards
        loaded |= {name: group[name] for name in SPEED_OPTIONS if name in group}


def _numbers_by_name(
    groups: Sequence[dict], in_order: Sequence[str], wanted: Sequence[Sequence[str]]
) -> dict[str, int] | None:
    """Return the numbers that parameters have in a checkpoint, if they are known."""
    if all('param_names' in group for group in groups):
        pairs = (zip(g['param_names'], g['params'], strict=True) for g in groups)
        return dict(pair for of_group in pairs for pair in of_group)
    trained = {name for of_group in wanted for name in of_group}
    if [len(group.get('params', ())) for group in groups] == [1] * len(trained):
        in_order = (name for name in in_order if name in trained)
        return dict(zip(in_order, (g['params'][0] for g in groups), strict=True))
    return None


def _move(
    checkpoint: Mapping[str, Any],
    wrapper: OptimWrapper,
    wanted: Sequence[Sequence[str]],
    numbers: Mapping[str, int],
) -> None:
    saved, current = checkpoint['optimizer'], wrapper.optimizer.param_groups
    groups, state = saved['param_groups'], {}
    different = {name for names in wanted for name in names} ^ numbers.keys()
    if different:
        raise ValueError(f'only one of the runs trains {min(different)}')
    place_of = {number: i for i, group in enumerate(groups) for number in group['params']}
    places, moved = [], []  # of each group: a group of the checkpoint with its options
    for names, group in zip(wanted, current, strict=True):
        places.append(place_of[numbers[names[0]]])
        options = _options(groups[places[-1]])
        for name in names:
            other = _options(groups[place_of[numbers[name]]])
            if other != options:
                raise ValueError(_difference(names[0], options, name, other))
        first = sum(len(other['params']) for other in moved)
        of_group = dict(params=[*range(first, first + len(names))])
        if 'param_names' in group:
            of_group['param_names'] = names
        moved.append({**options, **of_group})
        for number, name in enumerate(names, first):
            if numbers[name] in saved['state']:
                state[number] = saved['state'][numbers[name]]
    saved |= dict(param_groups=moved, state=state)
    if 'base_param_settings' in saved:
        places.append(len(groups))
    for scheduler in checkpoint.get('param_schedulers', []):
        for name in LISTS_BY_GROUP:
            if name in scheduler:
                scheduler[name] = [scheduler[name][place] for place in places]


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group that decide how its parameters change."""
    return {k: v for k, v in group.items() if k not in ('params', 'param_names', *SPEED_OPTIONS)}


def _difference(first: str, options: Mapping, name: str, other: Mapping) -> str:
    differing = [k for k in {**options, **other} if options.get(k) != other.get(k)]
    return (
        f'{first} and {name} are in one group of the optimizer, but differ in '
        f'{", ".join(f"{k}={options.get(k)} and {other.get(k)}" for k in differing)}'
    )
