"""Launchers of several processes, and the variables that they set."""

import os

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
