"""What all processes of a run agree on, without the GPUs."""

from typing import Any

import torch
import torch.distributed as dist
from mmengine.runner import Runner


class Consensus:
    """Small messages between the processes of a run, over a group of their own on the CPU.

    A GPU would have to finish its work first. Every process has to call each method at the same
    place; one process alone agrees with itself.
    """

    @classmethod
    def of(cls, runner: Runner) -> 'Consensus':
        """The one of a run, which all processes ask for when a training begins."""
        if not hasattr(runner, '_consensus'):
            runner._consensus = cls()
        return runner._consensus

    def __init__(self) -> None:
        self._group = None
        if dist.is_initialized():
            self._group = dist.new_group(backend='gloo')

    def maximum(self, value: int) -> int:
        """The largest of the values of all processes."""
        if self._group is None:
            return value
        tensor = torch.tensor(value)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group)
        return int(tensor)

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank."""
        if self._group is None:
            return [value]
        values = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self._group)
        return values
