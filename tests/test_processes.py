"""The connection of the processes of a run."""

import re
import socket
from datetime import timedelta

import pytest
from helpers.processes import torchrun

from xcit_mm import processes
from xcit_mm.errors import UserError
from xcit_mm.processes import connect


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


def test_a_first_process_whose_port_is_in_use_is_refused_at_once(monkeypatch):
    with socket.socket() as other:
        other.bind(('0.0.0.0', 0))
        other.listen()
        port = other.getsockname()[1]
        env = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), RANK='0', WORLD_SIZE='2')
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv('TORCHELASTIC_USE_AGENT_STORE', raising=False)
        with pytest.raises(UserError, match=f'cannot listen at port {port} .*set MASTER_PORT'):
            connect()
