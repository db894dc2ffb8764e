"""The connection of the processes of a run."""

import socket
from datetime import timedelta

import pytest

from xcit_mm.base.errors import UserError
from xcit_mm.base.processes import connect


@pytest.mark.parametrize('rank', [0, 1])  # the other process has ended, or has not started
def test_a_missing_process_is_an_error_with_the_address(monkeypatch, rank):
    monkeypatch.delenv('TORCHELASTIC_USE_AGENT_STORE', raising=False)
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        host, port = free.getsockname()
    env = dict(MASTER_ADDR=host, MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE='2')
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=f'not all 2 processes can be connected at {host}:{port}'):
        connect(timedelta(seconds=1))
