"""The cores that a process may use."""

import os
import re
from contextlib import suppress
from pathlib import Path

# The limit of a container: microseconds of computing in a period, and the period (cgroup 2).
CPU_LIMIT = '/sys/fs/cgroup/cpu.max'
# For each launcher, the variable with the number of its processes on this machine.
LOCAL_SIZES = {
    'pytorch': 'LOCAL_WORLD_SIZE',
    'slurm': 'SLURM_STEP_TASKS_PER_NODE',  # such as 8(x2): on each of two machines
    'mpi': 'OMPI_COMM_WORLD_LOCAL_SIZE',
}
CORES_OF_A_TASK = 'SLURM_CPUS_PER_TASK'


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
    processes = re.match(r'[1-9]\d*', os.environ.get(LOCAL_SIZES.get(launcher, ''), ''))
    return max(1, number_of_cores() // int(processes[0] if processes else 1))
