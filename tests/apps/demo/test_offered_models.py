"""The models that a page offers, the pictures that it reads, and the tool that serves it."""

import os
import signal
from pathlib import Path
from urllib.request import urlopen

import cv2
import numpy as np
import pytest
from helpers import wait_until
from helpers.random_weights import DETECTOR
from helpers.tool_server import Process
from PIL import Image

from xcit_mm.apps.demo import OfferedModels, find_models, models
from xcit_mm.apps.demo.page import read_picture
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


def test_a_large_picture_is_shrunk_and_a_huge_one_refused(tmp_path, monkeypatch):
    path = tmp_path / 'wide.png'
    image = np.zeros((300, 4096, 3), np.uint8)
    image[:, :2048, 0] = 255
    Image.fromarray(image).save(path)
    picture = read_picture(path)
    assert picture.shape == (150, 2048, 3)
    assert (picture[:, :1000] == (255, 0, 0)).all() and not picture[:, 1100:].any()
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 500_000)
    with pytest.raises(UserError, match=r'wide\.png cannot be used: it has more than 1 million'):
        read_picture(path)


@pytest.mark.parametrize('kind', ['BMP', 'GIF', 'JPEG', 'PNG', 'TIFF', 'WEBP'])
def test_pictures_of_a_browser_are_read_upright_by_pillow_alone(tmp_path, monkeypatch, kind):
    monkeypatch.delattr(cv2, 'imdecode')  # which may read another size than Pillow has measured
    path = tmp_path / 'picture'
    colors = np.zeros((20, 30, 3), np.uint8)
    colors[:, :15] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    options = dict(exif=exif) if kind in ('JPEG', 'PNG', 'TIFF', 'WEBP') else {}
    Image.fromarray(colors).save(path, kind, **options)
    expected = np.rot90(colors, -1) if options else colors
    assert np.abs(read_picture(path).astype(int) - expected).mean() < 3
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(UserError, match='picture cannot be used: it is'):
        read_picture(path)


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
        assert list(tmp_path.glob('xcit_mm_demo_*'))
        os.kill(tool.pid, signal.SIGINT)
        assert tool.wait() == 0
    assert log.read_text().endswith('The page is closed.\n')
    assert not list(tmp_path.glob('xcit_mm_demo_*'))
