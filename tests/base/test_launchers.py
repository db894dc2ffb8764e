import os

import pytest

from xcit_mm.base import launchers

MACHINE = 12  # cores


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    monkeypatch.setattr(os, 'sched_getaffinity', lambda _: set(range(MACHINE)), raising=False)
    monkeypatch.setattr(launchers, 'CPU_LIMIT', str(tmp_path / 'cpu.max'))
    for name in (launchers.CORES_OF_A_TASK, *(v.local_size for v in launchers.LAUNCHERS.values())):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ('limit', 'expected'),
    [('max 100000', 12), ('400000 100000', 4), ('50000 100000', 1), ('9900000 100000', 12)],
)
def test_cores_of_a_container(tmp_path, limit, expected):
    (tmp_path / 'cpu.max').write_text(f'{limit}\n')
    assert launchers.number_of_cores() == expected


@pytest.mark.parametrize(
    ('launcher', 'variables', 'expected'),
    [
        ('none', {}, 12),
        ('none', {'SLURM_STEP_TASKS_PER_NODE': '4'}, 12),  # a shell in a job of Slurm
        ('pytorch', {'LOCAL_WORLD_SIZE': '4'}, 3),
        ('pytorch', {'LOCAL_WORLD_SIZE': '32'}, 1),
        ('pytorch', {'LOCAL_WORLD_SIZE': '2', 'SLURM_CPUS_PER_TASK': '1'}, 6),
        ('mpi', {'OMPI_COMM_WORLD_LOCAL_SIZE': '2'}, 6),
        ('mpi', {}, 12),  # an MPI with other variables
        ('slurm', {'SLURM_STEP_TASKS_PER_NODE': '4(x2),3'}, 3),
        ('slurm', {'SLURM_STEP_TASKS_PER_NODE': '4', 'SLURM_CPUS_PER_TASK': '5'}, 5),
    ],
)
def test_the_processes_of_a_launcher_share_the_cores(monkeypatch, launcher, variables, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launchers.cores_of_process(launcher) == expected
