"""One model on all processes, also where BatchNorm is not synchronised."""

from mmengine.dist import broadcast
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner


@HOOKS.register_module()
class BufferSyncHook(Hook):
    """Give every process the running statistics of the first one, which are those saved.

    DistributedDataParallel does so at the start of each forward pass of training; without
    this, the processes validate, and end, with models that differ by the last step.
    """

    priority = 'HIGH'

    def before_val_epoch(self, runner: Runner) -> None:
        self._broadcast(runner)

    def after_train(self, runner: Runner) -> None:
        self._broadcast(runner)

    def _broadcast(self, runner: Runner) -> None:
        if is_model_wrapper(runner.model):
            for buffer in runner.model.buffers():
                broadcast(buffer, src=0)
