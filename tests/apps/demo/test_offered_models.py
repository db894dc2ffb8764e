"""The models that a page offers, and the tool that serves it."""

import os
import signal
from pathlib import Path
from urllib.request import urlopen

import pytest
from helpers import wait_until
from helpers.random_weights import DETECTOR
from helpers.tool_server import Process

from xcit_mm.apps.demo import OfferedModels, find_models, models
from xcit_mm.base.errors import UserError


def write(path: Path, time: float, text: str = '') -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (time, time))


def test_runs_are_offered_newest_first_and_configs_with_released_weights(tmp_path):
    configs, work_dirs = tmp_path / 'configs', tmp_path / 'work_dirs'
    for age, name in enumerate(('old/a.py', 'old/iter_1.pth', 'old/iter_2.pth', 'new/b.py'), 1):
        write(work_dirs / name, age)
    write(work_dirs / 'new/iter_9.pth', 9)
    for name in ('new/non_finite_iter_10.pth', 'unfinished/c.py', 'broken/non_finite_iter_1.pth'):
        write(work_dirs / name, 10)
    write(configs / 'released.py', 1, '"""A model.\n\nWeights: https://host/w.pth\n"""\n')
    write(configs / 'broken.py', 1, 'def\n')
    (work_dirs / 'new/last.pth').symlink_to('iter_9.pth')
    assert list(find_models(configs, work_dirs).items()) == [
        (f'{work_dirs}/new/b.py', [f'{work_dirs}/new/iter_9.pth']),
        (f'{work_dirs}/old/a.py', [f'{work_dirs}/old/iter_2.pth', f'{work_dirs}/old/iter_1.pth']),
        (f'{configs}/broken.py', []),
        (f'{configs}/released.py', ['https://host/w.pth']),
    ]
    assert list(find_models(tmp_path / 'none', work_dirs / 'new')) == [f'{work_dirs}/new/b.py']


def test_visitors_load_only_what_is_offered_and_one_model_is_kept(tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr(models, 'load_model', lambda *key, dtype: loaded.append(key) or key)
    offered, hidden = (str(tmp_path / name) for name in ('1.pth', '2.pth'))
    write(Path(offered), 1)
    page = OfferedModels(lambda: {'a.py': [offered]}, any_checkpoint=False)
    refused = ('b.py', offered), (None, offered), ({}, offered), ('a.py', None), ('a.py', hidden)
    for choice in refused:
        with pytest.raises(UserError, match='is not among those that this page offers'):
            page.load(*choice)
    assert page.load('a.py', offered) == page.load('a.py', offered) == ('a.py', offered)
    write(Path(offered), 2)  # a newer checkpoint of the same name
    page.load('a.py', offered)
    page.any_checkpoint = True
    for checkpoint in (hidden, offered):
        page.load('a.py', checkpoint)
    assert loaded == [('a.py', name) for name in (offered, offered, hidden, offered)]


def test_the_tool_serves_until_it_is_interrupted(models, free_port, tmp_path):
    port = free_port()
    argv = ['tools/demo.py', DETECTOR, *models[DETECTOR], f'--port={port}']
    proxy = 'http://127.0.0.1:1'  # where nobody answers
    environment = {**os.environ, 'GRADIO_TEMP_DIR': str(tmp_path), 'http_proxy': proxy}
    address, log = f'http://127.0.0.1:{port}/', tmp_path / 'log'
    with log.open('w') as output:
        tool = Process(argv, output, output, env=environment)
        wait_until(lambda: tool.poll() is not None or 'Ctrl-C' in log.read_text())
        assert log.read_text() == f'The page is at {address}; Ctrl-C ends it.\n'
        assert b'What XCiT sees' in urlopen(address).read()
        os.kill(tool.pid, signal.SIGINT)
        assert tool.wait() == 0
    assert log.read_text().endswith('The page is closed.\n')
