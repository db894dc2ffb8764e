"""The connection of the processes of a run."""

import os
import re
import socket
import time
from datetime import timedelta

import pytest
import torch.distributed as dist
from helpers.processes import forked, torchrun

from xcit_mm import processes
from xcit_mm.errors import UserError
from xcit_mm.processes import connect, cpu_group


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


def test_a_first_process_that_ends_before_it_connects_is_named(monkeypatch):
    with socket.socket() as nobody:
        nobody.bind(('127.0.0.1', 0))
        port = nobody.getsockname()[1]
        env = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), RANK='1', WORLD_SIZE='2')
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(
            UserError, match=f'the first of 2 .* at 127.0.0.1:{port} .*, after 0.01 m'
        ):
            connect(timedelta(minutes=0.01))


def test_a_first_process_names_a_port_that_is_in_use(monkeypatch):
    with socket.socket() as other:
        other.bind(('127.0.0.1', 0))
        other.listen()
        port = other.getsockname()[1]
        env = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), RANK='0', WORLD_SIZE='2')
        monkeypatch.delenv('TORCHELASTIC_USE_AGENT_STORE', raising=False)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UserError, match=f'cannot listen at 127.0.0.1:{port} .*MASTER_PORT'):
            connect()
