"""One model on all processes, also where BatchNorm is not synchronised."""

from itertools import groupby

import torch
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
        if not is_model_wrapper(runner.model):
            return
        buffers = sorted(runner.model.buffers(), key=lambda buffer: str(buffer.dtype))
        for _, group in groupby(buffers, key=lambda buffer: buffer.dtype):
            same = list(group)
            message = torch.cat([buffer.flatten() for buffer in same])  # one instead of a hundred
            broadcast(message, src=0)
            values = message.split([buffer.numel() for buffer in same])
            for buffer, value in zip(same, values, strict=True):
                buffer.copy_(value.view_as(buffer))
