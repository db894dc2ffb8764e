"""One model on all processes, also where BatchNorm is not synchronised."""

from mmengine.dist import broadcast
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner


@HOOKS.register_module()
class BufferSyncHook(Hook):
    """Validate with the running statistics of the first process, which are those saved.

    Where BatchNorm is not synchronised each process has statistics of its own, and an
    evaluation would depend on which process sees which image.
    """

    priority = 'HIGH'

    def before_val_epoch(self, runner: Runner) -> None:
        if is_model_wrapper(runner.model):
            for buffer in runner.model.buffers():
                broadcast(buffer, src=0)
