"""Few groups of parameters in an optimizer, which then updates many parameters at once."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from ..base.console import PARAMETER_GROUPS

SHOWN = ('lr', 'weight_decay')


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class MergedGroupsConstructor(DefaultOptimWrapperConstructor):
    """mmengine's constructor, with one group for all parameters of equal options.

    With a ``paramwise_cfg``, mmengine makes a group for each parameter, and PyTorch's foreach and
    fused optimizers update one group at a time. Merged groups give the same weights, bit for bit.

    The groups are in the order of their first parameters, so that mmengine logs the same rates as
    without merging: ``lr`` is the rate of the model's first parameter, and ``base_lr`` the rate
    that ``paramwise_cfg`` multiplies. As in PyTorch, ``param_names`` of a group has the names of
    its parameters; with them, a checkpoint can be resumed with other groups.

    It has the arguments of ``DefaultOptimWrapperConstructor``.
    """

    def __call__(self, model: nn.Module) -> OptimWrapper:
        wrapper = super().__call__(model)
        if not self.paramwise_cfg or not isinstance(wrapper, OptimWrapper):
            return wrapper
        _log(wrapper.optimizer.param_groups)
        frozen = sum(not parameter.requires_grad for parameter in model.parameters())
        if frozen:
            print_log(f'{frozen} tensors are frozen and stay as they are', logger='current')
        if wrapper.base_param_settings is None:  # mmengine logs no base_lr for a single group
            settings = {'params': torch.tensor([0.0]), **wrapper.optimizer.defaults}
            wrapper.base_param_settings = settings
        if wrapper.clip_grad_kwargs and wrapper.clip_func is clip_grad_norm_:
            wrapper.clip_func = _clip_in_order(getattr(model, 'module', model))
        return wrapper

    def add_params(
        self, params: list[dict], module: nn.Module, prefix: str = '', **kwargs: Any
    ) -> None:
        """Add the parameters of a module and of its children; merge the groups of the model."""
        super().add_params(params, module, prefix, **kwargs)  # calls this method for the children
        if not prefix:
            params[:] = self._merged(params, module)

    def _merged(self, groups: Sequence[dict], model: nn.Module) -> list[dict]:
        names = {parameter: name for name, parameter in model.named_parameters()}
        merged: list[tuple[dict, dict, dict[Tensor, str]]] = []
        for group in groups:
            # Options that a group lacks are those of the optimizer.
            options = {**self.optimizer_cfg, **group, 'params': None}
            members = next((of_group for other, _, of_group in merged if other == options), None)
            if members is None:
                merged.append((options, group, members := {}))
            # Parameters that modules share come several times.
            members |= {parameter: names[parameter] for parameter in group['params']}
        return [
            {**group, 'params': [*members], 'param_names': [*members.values()]}
            for _, group, members in merged
        ]


def _log(groups: Sequence[dict]) -> None:
    lines = []
    for group in groups:
        rates = ', '.join(f'{name}={group[name]:g}' for name in SHOWN if name in group)
        names = group['param_names']
        lines.append(f'  {len(names)} tensors from {names[0]} on: {rates}')
    print_log('\n'.join([PARAMETER_GROUPS, *lines]), logger='current')


def _clip_in_order(model: nn.Module) -> Callable[..., Tensor]:
    """Return PyTorch's clipping, with a norm whose rounding does not depend on the groups."""
    places = {parameter: place for place, parameter in enumerate(model.parameters())}

    def clip(parameters: Iterable[Tensor], *args: Any, **kwargs: Any) -> Tensor:
        # Those that were added to the optimizer come last.
        in_order = sorted(parameters, key=lambda parameter: places.get(parameter, len(places)))
        return clip_grad_norm_(in_order, *args, **kwargs)

    return clip
