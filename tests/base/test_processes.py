"""The connection of the processes of a run."""

import os
import re
import socket
import time
from datetime import timedelta

import pytest
import torch.distributed as dist
from helpers.processes import forked, torchrun

from xcit_mm.base import processes
from xcit_mm.base.errors import UserError
from xcit_mm.base.processes import connect, cpu_group


def test_a_process_that_ends_before_it_connects_is_named(monkeypatch, capsys):
    monkeypatch.setattr(processes, 'NOTICE', timedelta(seconds=0.1))
    with torchrun(3) as env:
        for name, value in (env | {'RANK': '1'}).items():
            monkeypatch.setenv(name, value)
        address = f'127.0.0.1:{env["MASTER_PORT"]}'
        problem = f'only 1 of 3 processes have arrived at {address} (missing: 1, 3)'
        sentence = re.escape(f'{problem}, after 0.01 minutes: see the messages')
        with pytest.raises(UserError, match=sentence):
            connect(timedelta(minutes=0.01))
    assert capsys.readouterr().err == f'{problem}; waiting 0.01 minutes\n'


def test_no_process_closes_a_connection_that_another_one_is_making(tmp_path):
    def run(rank: int) -> None:
        os.environ.update(env, RANK=str(rank))
        connect_group, close = dist.init_process_group, dist.destroy_process_group

        def connect_late(*args, **kwargs) -> None:
            connect_group(*args, **kwargs)
            time.sleep(0.3 * rank)
            (tmp_path / f'connected_{rank}').touch()

        def close_checked(*args) -> None:
            assert (tmp_path / 'connected_1').exists()
            close(*args)

        dist.init_process_group, dist.destroy_process_group = connect_late, close_checked
        connect()
        assert cpu_group() is not None

    with torchrun(2) as env:
        forked(2, run)


@pytest.mark.parametrize(
    ('rank', 'message'),
    [
        (1, 'the first of 2 .* at {} .*, after 0.01 m'),  # it has ended before it connects
        (0, 'cannot listen at {} .*MASTER_PORT'),  # another program does
    ],
)
def test_an_address_where_the_first_process_is_not_is_named(monkeypatch, rank, message):
    monkeypatch.delenv('TORCHELASTIC_USE_AGENT_STORE', raising=False)
    with socket.socket() as other:
        other.bind(('127.0.0.1', 0))
        if rank == 0:
            other.listen()
        host, port = other.getsockname()
        env = dict(MASTER_ADDR=host, MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE='2')
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UserError, match=message.format(f'{host}:{port}')):
            connect(timedelta(minutes=0.01))
