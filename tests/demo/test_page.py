"""The page in a real browser."""

import re
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from helpers import PATIENCE
from helpers.demo_page import MAX_UPLOAD, make_models, served_page
from helpers.random_weights import DETECTOR, SEGMENTOR
from playwright.sync_api import expect

from xcit_mm.inference import Model

TIMEOUT = PATIENCE * 1000  # ms


@pytest.fixture(scope='module')
def models(tmp_path_factory) -> dict[str, list[str]]:
    return make_models(tmp_path_factory.mktemp('models'))


@pytest.fixture(scope='module')
def address(models, shapes_root) -> Iterator[str]:
    with served_page(models, shapes_root) as address:
        yield address


@pytest.fixture
def calls(monkeypatch) -> list[np.ndarray]:
    """The pictures that models were asked about."""
    calls = []
    predict = Model.predict
    monkeypatch.setattr(
        Model, 'predict', lambda model, image: calls.append(image) or predict(model, image)
    )
    return calls


@pytest.fixture
def visit(browser, address) -> Iterator['Visit']:
    context = browser.new_context(viewport=dict(width=1280, height=1000))
    context.set_default_timeout(TIMEOUT)
    yield Visit(context.new_page(), address)
    context.close()


@pytest.fixture
def picture(shapes_root) -> Path:
    return min((shapes_root / 'coco/val2017').glob('*.jpg'))


class Visit:
    """The page as a visitor uses it."""

    def __init__(self, page, address: str) -> None:
        self.page = page
        self.hosts: set[str] = set()
        page.on('request', lambda request: self.hosts.add(request.url.split('/')[2]))
        page.goto(address)
        expect(self.field('Config')).to_have_value(re.compile('.'), timeout=TIMEOUT)

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

    def wait_for_status(self, pattern: str) -> None:
        status = self.page.locator('#status textarea')
        expect(status).to_have_value(re.compile(pattern), timeout=TIMEOUT)

    def wait_for(self, pattern: str) -> str:
        text = self.page.get_by_text(re.compile(pattern)).first
        text.wait_for()
        return text.inner_text()

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


def test_a_dropped_picture_is_shown_with_its_objects_and_sliders_draw_it_again(
    visit, calls, picture
):
    visit.drop(picture)
    visit.wait_for_status(r'^found in \d+\.\d\d s by \S+\.pth$')
    number, of = map(int, re.findall(r'\d+', visit.wait_for(r'^\d+ of \d+ objects$')))
    assert 0 < number <= of
    source, objects = visit.result()
    original = cv2.imread(str(picture))
    original = cv2.resize(original, objects.shape[1::-1], interpolation=cv2.INTER_CUBIC)
    assert difference(objects, original) > 10
    row = visit.page.get_by_role('row', name=re.compile(rf'^circle {number} 0\.95$')).first
    row.wait_for()

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
    visit.wait_for(f'^0 of {of} objects$')
    assert difference(visit.result(other_than=source)[1], original) < 3
    row.wait_for(state='hidden')
    assert len(calls) == 1

    result = visit.page.locator('#result')
    with visit.page.expect_download() as download:
        result.get_by_label('Download').click()
    assert cv2.imread(str(download.value.path())).shape == original.shape
    width = result.bounding_box()['width']
    result.get_by_label('Fullscreen').click()
    visit.page.wait_for_function(
        '(width) => document.querySelector("#result").clientWidth > 1.5 * width', arg=width
    )
    assert visit.hosts == {visit.page.url.split('/')[2]}


def test_a_segmentation_is_shown_and_its_opacity_follows_the_slider(visit, models, calls):
    visit.choose('Config', SEGMENTOR)
    expect(visit.field('Checkpoint')).to_have_value(models[SEGMENTOR][0], timeout=TIMEOUT)
    visit.page.locator('#examples button').first.click()
    visit.wait_for_status(r'^found in .* by \S+sem_fpn\.pth$')
    source, half = visit.result()
    visit.page.get_by_role('spinbutton', name='Opacity').fill('1')
    _, full = visit.result(other_than=source)
    assert full.shape == half.shape and difference(full, half) > 10
    assert len(calls) == 1
    visit.page.get_by_role('row', name=re.compile(r'^\w+ [\d.]+%$')).first.wait_for()
    assert visit.page.get_by_label('Boxes').is_hidden()


def test_an_invalid_picture_is_named_and_the_page_goes_on(visit, picture, tmp_path):
    visit.button.click()
    visit.wait_for('^no picture is chosen: ')
    text = tmp_path / 'notes.txt'
    text.write_text('no picture')
    visit.drop(text)
    visit.wait_for('Invalid file type')

    visit.page.reload()
    visit.drop(text.rename(tmp_path / 'notes.jpg'))
    visit.wait_for(r'^notes\.jpg cannot be used: it is no image that can be read; take another')

    visit.page.reload()
    large = tmp_path / 'large.jpg'
    large.write_bytes(bytes(int(MAX_UPLOAD * 2**20) + 1))
    visit.drop(large)
    visit.wait_for('exceeds? the maximum allowed size')
    assert visit.page.get_by_text(f'at most {MAX_UPLOAD} MB').is_visible()

    visit.drop(picture)
    visit.wait_for_status('^found in')


class Harmful:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, 'w')


def test_an_invalid_model_is_named_and_the_page_goes_on(visit, models, picture, tmp_path):
    visit.drop(picture)
    visit.wait_for_status('^found in')
    planted, harmful = tmp_path / 'planted', tmp_path / 'harmful.pth'
    torch.save({'state_dict': Harmful(planted)}, harmful)
    messages = {
        tmp_path / 'missing.pth': r'missing\.pth does not exist',
        models[SEGMENTOR][0]: 'does not hold the weights of this model',
        picture: r'\.jpg cannot be read',
        harmful: r'harmful\.pth',
    }
    for checkpoint, message in messages.items():
        visit.choose('Checkpoint', str(checkpoint))
        visit.button.click()
        visit.wait_for(message)
    assert not planted.exists()
    visit.choose('Checkpoint', models[DETECTOR][0])
    visit.button.click()
    visit.wait_for_status(f'^found in .* by {models[DETECTOR][0]}')


def test_a_later_run_is_offered_when_the_page_is_opened(visit, models, monkeypatch):
    monkeypatch.setitem(models, 'later.py', ['later.pth'])
    visit.page.reload()
    visit.field('Config').click()
    visit.page.get_by_role('option', name='later.py').click()
    expect(visit.field('Checkpoint')).to_have_value('later.pth', timeout=TIMEOUT)


def test_a_checkpoint_can_be_typed_only_where_the_page_is_started_for_it(
    browser, models, shapes_root, tmp_path
):
    with served_page(models, shapes_root, any_checkpoint=False) as address:
        visit = Visit(browser.new_page(), address)
        visit.choose('Checkpoint', str(tmp_path / 'mine.pth'))
        visit.field('Config').click()
        expect(visit.field('Checkpoint')).to_have_value(models[DETECTOR][0], timeout=TIMEOUT)
        visit.page.close()
