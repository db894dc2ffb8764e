"""Launchers of several processes: their variables, and the cores that a process may use."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Launcher(NamedTuple):
    """The variables of a launcher, and the command that starts it."""

    rank: str  # of the process
    local_size: str  # the number of processes on this machine
    command: str


LAUNCHERS = {
    'pytorch': Launcher('RANK', 'LOCAL_WORLD_SIZE', 'tools/dist_train.sh or torchrun'),
    # The number is such as 8(x2): on each of two machines.
    'slurm': Launcher('SLURM_PROCID', 'SLURM_STEP_TASKS_PER_NODE', 'tools/slurm_train.sh or srun'),
    'mpi': Launcher('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_LOCAL_SIZE', 'mpirun'),
}
CORES_OF_A_TASK = 'SLURM_CPUS_PER_TASK'
RESTART_COUNTS = ('TORCHELASTIC_RESTART_COUNT', 'SLURM_RESTART_COUNT')
# The limit of a container: microseconds of computing in a period, and the period (cgroup 2).
CPU_LIMIT = '/sys/fs/cgroup/cpu.max'


def is_first_process(launcher: str) -> bool:
    """Return whether this process writes files, before the processes are connected."""
    return launcher == 'none' or os.environ[LAUNCHERS[launcher].rank] == '0'


def was_restarted() -> bool:
    """Return whether torchrun (``--max-restarts``) or Slurm (``--requeue``) restarted the job."""
    counts = (os.environ.get(name, '') for name in RESTART_COUNTS)
    return any(count.isdecimal() and int(count) > 0 for count in counts)


def number_of_cores() -> int:
    """Return the number of cores that this process may use, at least 1."""
    has_affinity = hasattr(os, 'sched_getaffinity')
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no container, or the limit is 'max'
        computing, period = map(int, Path(CPU_LIMIT).read_text(encoding='utf-8').split())
        cores = min(cores, computing // period)
    return max(1, cores)


def cores_of_process(launcher: str) -> int:
    """Return the share of a process of a launcher in the cores of this machine, at least 1."""
    if launcher == 'slurm' and CORES_OF_A_TASK in os.environ:  # Slurm has shared them out
        return min(number_of_cores(), int(os.environ[CORES_OF_A_TASK]))
    variable = LAUNCHERS[launcher].local_size if launcher in LAUNCHERS else ''
    processes = re.match(r'[1-9]\d*', os.environ.get(variable, ''))
    return max(1, number_of_cores() // int(processes[0] if processes else 1))
