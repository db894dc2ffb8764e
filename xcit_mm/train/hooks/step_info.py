"""The values of a step that Python needs, read from the GPU together after the step."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from mmengine.hooks import RuntimeInfoHook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor


@HOOKS.register_module()
class StepInfoHook(RuntimeInfoHook):
    """mmengine's ``RuntimeInfoHook``, which waits for the GPU once in a step.

    It reads the losses and the norm of the gradients together after the step. mmengine reads each
    by itself, the norm before the optimizer's step is started. The logged values are the same.

    Attributes:
        unread: Tensors of one number that are read with the losses, by their names in the log.
        is_finite: Whether the gradients were finite, if another hook has left that in ``unread``
            as ``IS_FINITE``, which is not logged; False without a step of the optimizer.
    """

    IS_FINITE = 'is_finite'
    is_finite = False

    def before_train(self, runner: Runner) -> None:
        super().before_train(runner)
        self.unread = unread = dict[str, Tensor]()
        wrapper = runner.optim_wrapper
        clip = getattr(wrapper, 'clip_func', None)
        if clip is None:  # without clip_grad, or with several optimizers
            return

        def clip_unread(*args: Any, **kwargs: Any) -> Any:
            norm = clip(*args, **kwargs)
            if norm is not None:  # clip_grad_value_ has none
                unread[wrapper.grad_name] = norm

        wrapper.clip_func = clip_unread

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: dict | None = None
    ) -> None:
        numbers = _read({**self.unread, **(outputs or {})})
        self.unread.clear()
        self.is_finite = bool(numbers.pop(self.IS_FINITE, False))
        super().after_train_iter(runner, batch_idx, data_batch, numbers)


def _read(values: Mapping[str, Any]) -> dict[str, Any]:
    """Read tensors of one number each, in one transfer from each device and for each dtype."""
    together: dict[Any, list[str]] = defaultdict(list)
    for name, value in values.items():
        if isinstance(value, Tensor):
            together[value.device, value.dtype].append(name)
    numbers = dict(values)
    for names in together.values():
        stacked = torch.stack([values[name].detach().reshape(()) for name in names])
        numbers.update(zip(names, stacked.tolist(), strict=True))
    return numbers
