"""The processes of a run: what started them, and how they connect."""

import os

import torch
from mmengine.config import Config
from mmengine.dist import init_dist
from mmengine.model import is_model_wrapper
from mmengine.utils.dl_utils import set_multi_processing
from torch import distributed as dist
from torch import nn

from ..errors import UserError, reason
from ..processes import connect

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


def connect_run(cfg: Config) -> None:
    """Connect the processes of a launcher, as mmengine's runner would.

    Raises:
        UserError: If a process has not arrived after ten minutes.
    """
    if not torch.cuda.is_available():
        connect()  # mmengine's start needs CUDA devices
        return
    settings = cfg.get('env_cfg') or {}
    set_multi_processing(**settings.get('mp_cfg', {}), distributed=True)
    try:
        init_dist(cfg.launcher, **settings.get('dist_cfg', {}))  # NCCL waits for ten minutes
    except dist.DistError as error:
        address = f'{os.environ.get("MASTER_ADDR")}:{os.environ.get("MASTER_PORT")}'
        raise UserError(
            f'not all processes have arrived at {address} ({reason(error)}): see the messages of '
            'the others, and start all of them again'
        ) from error


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel, or the model itself."""
    return model.module if is_model_wrapper(model) else model
