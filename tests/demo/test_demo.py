"""The page in a real browser, its model, and the tool that serves it."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import cv2
import numpy as np
import pytest
import torch
from helpers import PATIENCE, ROOT
from helpers.demo_page import HOST, MAX_UPLOAD, free_port, make_models, served_page
from helpers.random_weights import DETECTOR, SEGMENTOR
from PIL import Image
from playwright.sync_api import expect

from xcit_mm.demo import predictor
from xcit_mm.demo.predictor import Predictor
from xcit_mm.errors import UserError
from xcit_mm.inference import load_model

TIMEOUT = PATIENCE * 1000  # ms


@pytest.fixture(scope='module')
def models(tmp_path_factory) -> dict[str, list[str]]:
    return make_models(tmp_path_factory.mktemp('models'))


@pytest.fixture(scope='module')
def asked() -> list[str]:
    """The checkpoints of all predictions so far."""
    return []


@pytest.fixture(scope='module')
def address(models, asked, shapes_root) -> Iterator[str]:
    predict = Predictor.predict

    def counted(self, config, checkpoint, image):
        asked.append(checkpoint)
        return predict(self, config, checkpoint, image)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Predictor, 'predict', counted)
        with served_page(models, shapes_root) as address:
            yield address


@pytest.fixture
def visit(browser, address) -> Iterator['Visit']:
    context = browser.new_context(viewport=dict(width=1280, height=1000))
    context.set_default_timeout(TIMEOUT)
    yield Visit(context.new_page(), address)
    context.close()


class Visit:
    """The page in a browser, as a visitor uses it."""

    def __init__(self, page, address: str) -> None:
        self.page = page
        self.hosts: set[str] = set()
        page.on('request', lambda request: self.hosts.add(request.url.split('/')[2]))
        page.goto(address)
        self.button.wait_for()

    @property
    def button(self):
        return self.page.get_by_role('button', name='Find')

    def drop(self, path: Path) -> None:
        self.page.locator('input[type=file]').first.set_input_files(path)

    def field(self, label: str):
        return self.page.get_by_role('combobox', name=label)

    def choose(self, label: str, text: str) -> None:
        self.field(label).fill(text)
        self.field(label).press('Enter')

    def says(self, role: str, pattern: str) -> str:
        said = self.page.locator(f'p[role={role}]').filter(has_text=re.compile(pattern))
        said.wait_for()
        return said.inner_text()

    def row(self, pattern: str):
        """Of the table."""
        return self.page.get_by_role('row', name=re.compile(pattern)).first

    def toast(self) -> str:
        toast = self.page.get_by_test_id('toast-body').first
        toast.wait_for()
        return toast.inner_text()

    def result(self, other_than: str | None = None) -> tuple[str, np.ndarray]:
        """Address and pixels of the picture on the right, once it is another one."""
        selector = '#result img'
        self.page.wait_for_function(
            '([selector, other]) => { const image = document.querySelector(selector);'
            'return image && image.naturalWidth && image.src != other }',
            arg=[selector, other_than],
        )
        source = self.page.locator(selector).first.get_attribute('src')
        data = np.frombuffer(self.page.request.get(source).body(), np.uint8)
        return source, cv2.imdecode(data, cv2.IMREAD_COLOR)


def difference(image: np.ndarray, other: np.ndarray) -> float:
    """Mean of all pixels, of 255."""
    return float(np.abs(image.astype(int) - other).mean())


def test_a_dropped_picture_is_shown_with_its_objects_and_sliders_draw_anew(
    visit, asked, shapes_root, tmp_path
):
    picture = min((shapes_root / 'coco/val2017').glob('*.jpg'))
    visit.drop(picture)
    said = visit.says('status', r'^\d+ of \d+ objects, found in \d+\.\d\d s by \S+\.pth$')
    number, of = map(int, re.match(r'(\d+) of (\d+)', said).groups())
    assert 0 < number <= of
    source, objects = visit.result()
    original = cv2.imread(str(picture))
    original = cv2.resize(original, objects.shape[1::-1], interpolation=cv2.INTER_CUBIC)
    assert difference(objects, original) > 10
    visit.row(rf'^circle {number} 0\.95$').wait_for()
    visit.page.screenshot(path=tmp_path / 'page.png', full_page=True)

    calls = len(asked)
    visit.page.get_by_label('Boxes').uncheck()
    source, masks = visit.result(other_than=source)
    visit.page.get_by_label('Masks').uncheck()
    source, without = visit.result(other_than=source)
    assert difference(masks, objects) > 1 < difference(masks, original)
    assert difference(without, original) < 3
    visit.page.get_by_label('Boxes').check()
    source, boxes = visit.result(other_than=source)
    assert difference(boxes, masks) > 1 < difference(boxes, original)
    visit.page.get_by_role('spinbutton', name='Lowest score').fill('1')
    visit.says('status', f'^0 of {of} objects')
    _, nothing = visit.result(other_than=source)
    assert difference(nothing, original) < 3
    visit.row('^circle').wait_for(state='hidden')
    assert len(asked) == calls

    result = visit.page.locator('#result')
    with visit.page.expect_download() as download:
        result.get_by_label('Download').click()
    assert cv2.imread(str(download.value.path())).shape == original.shape
    width = result.bounding_box()['width']
    result.get_by_label('Fullscreen').click()
    visit.page.wait_for_function(
        '(width) => document.querySelector("#result").clientWidth > 1.5 * width', arg=width
    )

    assert Image.open(tmp_path / 'page.png').size >= (1280, 1000)
    assert visit.hosts == {visit.page.url.split('/')[2]}


def test_a_segmentation_is_shown_and_its_opacity_follows_the_slider(visit, models, asked):
    visit.choose('Config', SEGMENTOR)
    expect(visit.field('Checkpoint')).to_have_value(models[SEGMENTOR][0], timeout=TIMEOUT)
    visit.page.locator('#examples button').first.click()
    visit.says('status', r'^\d class(es)?, found in .* by \S+sem_fpn\.pth$')
    source, half = visit.result()
    calls = len(asked)
    visit.page.get_by_role('spinbutton', name='Opacity').fill('1')
    _, full = visit.result(other_than=source)
    assert full.shape == half.shape
    assert difference(full, half) > 10
    assert len(asked) == calls
    visit.row(r'^\w+ [\d.]+%$').wait_for()
    assert visit.page.get_by_label('Boxes').is_hidden()


def test_what_is_no_picture_or_too_large_is_said_and_the_page_goes_on(visit, shapes_root, tmp_path):
    visit.button.click()
    visit.says('alert', '^no picture is chosen: ')

    text = tmp_path / 'notes.txt'
    text.write_text('no picture')
    visit.drop(text)
    assert 'Invalid file type' in visit.toast()

    visit.page.reload()
    disguised = text.rename(tmp_path / 'notes.jpg')
    visit.drop(disguised)
    visit.says(
        'alert', r'^notes\.jpg cannot be used: it is no image that can be read; take another'
    )

    visit.page.reload()
    large = tmp_path / 'large.jpg'
    large.write_bytes(bytes(int(MAX_UPLOAD * 2**20) + 1))
    visit.drop(large)
    assert re.search('exceeds? the maximum allowed size', visit.toast())
    assert visit.page.get_by_text(f'at most {MAX_UPLOAD} MB').is_visible()

    visit.drop(min((shapes_root / 'coco/val2017').glob('*.jpg')))
    visit.says('status', 'objects, found in')


def test_what_is_wrong_with_a_model_is_said_and_the_page_goes_on(
    visit, models, shapes_root, tmp_path
):
    visit.drop(min((shapes_root / 'coco/val2017').glob('*.jpg')))
    visit.says('status', 'objects, found in')

    planted = tmp_path / 'planted'
    harmful = tmp_path / 'harmful.pth'
    torch.save({'state_dict': Harmful(planted)}, harmful)
    wrong = {
        tmp_path / 'missing.pth': 'missing.pth does not exist',
        models[SEGMENTOR][0]: 'is of a segmentor, and',
        shapes_root / 'shapes.json': 'shapes.json cannot be read',
        harmful: 'harmful.pth',
    }
    for checkpoint, sentence in wrong.items():
        visit.choose('Checkpoint', str(checkpoint))
        visit.button.click()
        visit.says('alert', re.escape(sentence))
    assert not planted.exists()

    visit.choose('Checkpoint', models[DETECTOR][0])
    visit.button.click()
    visit.says('status', 'objects, found in')


class Harmful:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, 'w')


def test_a_run_that_came_later_is_offered_when_the_page_is_opened(visit, models, monkeypatch):
    monkeypatch.setitem(models, 'later.py', ['later.pth'])
    visit.page.reload()
    visit.field('Config').click()
    visit.page.get_by_role('option', name='later.py').click()
    expect(visit.field('Checkpoint')).to_have_value('later.pth', timeout=TIMEOUT)


def test_one_model_is_kept_until_another_or_a_newer_one_is_asked(models, monkeypatch):
    read = []

    def counted(config, checkpoint):
        read.append(checkpoint)
        return load_model(config, checkpoint)

    monkeypatch.setattr(predictor, 'load_model', counted)
    image = np.zeros((32, 32, 3), np.uint8)
    [detector], [segmentor] = models[DETECTOR], models[SEGMENTOR]
    one = Predictor()
    one.load(DETECTOR, detector)
    one.predict(DETECTOR, detector, image)
    assert read == [detector]
    os.utime(detector, (0, 0))
    one.predict(DETECTOR, detector, image)
    assert read == [detector] * 2
    with pytest.raises(UserError):
        one.load(DETECTOR, segmentor)
    one.predict(DETECTOR, detector, image)
    assert read == [detector, detector, segmentor, detector]


def test_visitors_wait_for_each_other(monkeypatch):
    together = threading.Barrier(2)

    class Slow:
        def predict(self, image):
            with pytest.raises(threading.BrokenBarrierError):
                together.wait(0.2)
            together.reset()
            return image

    monkeypatch.setattr(predictor, 'load_model', lambda *_: Slow())
    one = Predictor()
    with ThreadPoolExecutor() as visitors:
        asked = [visitors.submit(one.predict, 'a.py', '1.pth', number) for number in range(2)]
    assert [of.result()[0] for of in asked] == [0, 1]


@pytest.fixture
def interruptible():
    """What a shell starts in its background ignores Ctrl-C, and so would the children of that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_tool_serves_until_it_is_interrupted(models, tmp_path, interruptible):
    port = free_port()
    command = [sys.executable, 'tools/demo.py', DETECTOR, *models[DETECTOR], f'--port={port}']
    proxy = f'http://{HOST}:1'  # where nobody answers
    environment = {**os.environ, 'GRADIO_TEMP_DIR': str(tmp_path), 'http_proxy': proxy}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as tool:
        said = tool.stdout.readline()
        assert said == f'The page is at http://{HOST}:{port}/; Ctrl-C ends it.\n'
        assert b'What XCiT sees' in urlopen(f'http://{HOST}:{port}/').read()
        assert list(tmp_path.glob('xcit_mm_demo_*'))
        tool.send_signal(signal.SIGINT)
        assert tool.stdout.read() == 'The page is closed.\n'
    assert tool.returncode == 0
    assert not list(tmp_path.glob('xcit_mm_demo_*'))
