"""The schedules of a self-distillation, and the step of its teacher."""

from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch.optim import Optimizer

from ..distributed import unwrapped
from . import order


@HOOKS.register_module()
class MomentumTeacherHook(Hook):
    """Move the teacher of a :class:`.SelfDistillation` after each step of the optimizer.

    Temperature and momentum follow from the iteration, so that a resumed run continues with the
    same ones. While the last layer of the student is frozen, its gradients are dropped.
    """

    priority = order.TEACHER

    def before_train(self, runner: Runner) -> None:
        self._model = unwrapped(runner.model)
        runner.optim_wrapper.optimizer.register_step_pre_hook(self._freeze)

    def before_train_iter(self, runner: Runner, **_: Any) -> None:
        self._model.set_progress(runner.iter / runner.max_iters)

    def after_train_iter(self, runner: Runner, **_: Any) -> None:
        if runner.optim_wrapper.should_update():
            self._model.update_teacher()

    def _freeze(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        if self._model.is_last_layer_frozen:
            for parameter in self._model.student.head.last_layer.parameters():
                parameter.grad = None
