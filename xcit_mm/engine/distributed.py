"""The processes of a run: what started them, and how they exchange small messages."""

import os

import torch.distributed
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import nn
from torch.distributed import ProcessGroup

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


def cpu_group(runner: Runner) -> ProcessGroup | None:
    """Return a gloo group for small messages, or None for a run of one process.

    A message through a GPU would wait until the GPU has finished its work. The first call creates
    the group, so all processes must make it at the same point.
    """
    if not hasattr(runner, '_cpu_group'):
        is_distributed = torch.distributed.is_initialized()
        runner._cpu_group = torch.distributed.new_group(backend='gloo') if is_distributed else None
    return runner._cpu_group


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel, or the model itself."""
    return model.module if is_model_wrapper(model) else model
