"""The processes of a run: who started them, and what they agree on."""

import os
from typing import Any

import torch
import torch.distributed as dist
from mmengine.runner import Runner

# For each launcher: the variable with the rank of the process, and the command that starts it.
LAUNCHERS = {
    'pytorch': ('RANK', 'tools/dist_train.sh or torchrun'),
    'slurm': ('SLURM_PROCID', 'tools/slurm_train.sh or srun'),
    'mpi': ('OMPI_COMM_WORLD_RANK', 'mpirun'),
}
RESTART_COUNTS = ('TORCHELASTIC_RESTART_COUNT', 'SLURM_RESTART_COUNT')


def is_first_process(launcher: str) -> bool:
    """Return whether this process writes files, before the processes are connected."""
    return launcher == 'none' or os.environ[LAUNCHERS[launcher][0]] == '0'


def was_restarted() -> bool:
    """Return whether torchrun (``--max-restarts``) or Slurm (``--requeue``) restarted the job."""
    counts = (os.environ.get(name, '') for name in RESTART_COUNTS)
    return any(count.isdecimal() and int(count) > 0 for count in counts)


class CpuGroup:
    """Small messages between the processes of a run, through gloo instead of the GPUs.

    A message through a GPU would wait until the GPU has finished its work. Every process must call
    each method at the same point. In a run of one process each method returns its own value.
    """

    @classmethod
    def of(cls, runner: Runner) -> 'CpuGroup':
        """Return the group of a run. All processes ask for it when a training starts."""
        if not hasattr(runner, '_cpu_group'):
            runner._cpu_group = cls()
        return runner._cpu_group

    def __init__(self) -> None:
        self._group = dist.new_group(backend='gloo') if dist.is_initialized() else None

    def maximum(self, value: int) -> int:
        """Return the largest value of all processes."""
        if self._group is None:
            return value
        tensor = torch.tensor(value)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group)
        return int(tensor)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, by rank."""
        if self._group is None:
            return [value]
        values = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self._group)
        return values

    def broadcast(self, value: Any) -> Any:
        """Return the value of the first process."""
        if self._group is None:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self._group)
        return values[0]
