"""The processes of a run: what started them, and how they exchange small messages."""

import os
from typing import Any

import torch
import torch.distributed
from mmengine.dist import all_gather_object, all_reduce
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
        distributed = torch.distributed.is_initialized()
        self._group = torch.distributed.new_group(backend='gloo') if distributed else None

    def maximum(self, value: int) -> int:
        """Return the largest value of all processes."""
        tensor = torch.tensor(value)
        all_reduce(tensor, 'max', self._group)
        return int(tensor)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, by rank."""
        return all_gather_object(value, self._group)

    def broadcast(self, value: Any) -> Any:
        """Return the value of the first process."""
        return self.gather(value)[0]
