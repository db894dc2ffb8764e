"""The page in a real browser."""

import re
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from helpers import TIMEOUT, wait_until
from helpers.random_weights import DETECTOR, SEGMENTOR
from playwright.sync_api import expect

from xcit_mm.predict.model import Model

MILLISECONDS = TIMEOUT * 1000  # ms


class Visit:
    """The page as a visitor uses it."""

    def __init__(self, page, address: str) -> None:
        self.page = page
        self.hosts: set[str] = set()
        page.on('request', lambda request: self.hosts.add(request.url.split('/')[2]))
        page.goto(address)
        self.wait_for_models()

    def reload(self) -> None:
        self.page.reload()
        self.wait_for_models()

    def wait_for_models(self) -> None:
        expect(self.field('Config')).to_have_value(re.compile('.'), timeout=MILLISECONDS)

    def drop(self, path: Path) -> None:
        self.page.locator('input[type=file]').first.set_input_files(path)

    def find(self) -> None:
        self.page.get_by_role('button', name='Find').click()

    def field(self, label: str, role: str = 'combobox'):
        return self.page.get_by_role(role, name=label)

    def choose(self, label: str, text: str) -> None:
        self.field(label).fill(text)
        self.field(label).press('Enter')

    def wait_for_status(self, pattern: str) -> None:
        status = self.page.locator('#status textarea')
        expect(status).to_have_value(re.compile(pattern), timeout=MILLISECONDS)

    def wait_for(self, pattern: str) -> None:
        self.page.get_by_text(re.compile(pattern)).first.wait_for()

    def next_result(self, previous: str | None = None) -> tuple[str, np.ndarray]:
        """Address and pixels of the picture on the right, once it is another picture."""
        self.page.wait_for_function(
            'previous => { const image = document.querySelector("#result img");'
            'return image && image.naturalWidth && image.src != previous }',
            arg=previous,
        )
        source = self.page.locator('#result img').first.get_attribute('src')
        data = np.frombuffer(self.page.request.get(source).body(), np.uint8)
        return source, cv2.imdecode(data, cv2.IMREAD_COLOR)


@pytest.fixture
def visit(browser, address) -> Iterator[Visit]:
    context = browser.new_context(viewport=dict(width=1280, height=1000))
    context.set_default_timeout(MILLISECONDS)
    yield Visit(context.new_page(), address)
    context.close()


@pytest.fixture
def calls(monkeypatch) -> list[np.ndarray]:
    """The pictures that models have answered."""
    calls, original = [], Model.predict

    def predict(self, image):
        prediction = original(self, image)
        calls.append(image)
        return prediction

    monkeypatch.setattr(Model, 'predict', predict)
    return calls


def difference(image: np.ndarray, reference: np.ndarray) -> float:
    """Mean of all pixels, of 255."""
    return float(np.abs(image.astype(int) - reference).mean())


def test_a_dropped_picture_is_shown_with_its_objects_and_sliders_draw_it_again(
    visit, calls, picture
):
    visit.drop(picture)
    visit.wait_for_status(r'^found in \d+\.\d\d s by \S+\.pth$')
    visit.wait_for(r'^(\d+) of \1 objects$')
    visit.page.get_by_role('row', name=re.compile(r'^circle \d+ 0\.95$')).first.wait_for()
    source, objects = visit.next_result()
    original = cv2.resize(
        cv2.imread(str(picture)), objects.shape[1::-1], interpolation=cv2.INTER_CUBIC
    )
    visit.page.get_by_label('Boxes').uncheck()
    source, masks = visit.next_result(source)
    visit.page.get_by_label('Masks').uncheck()
    source, without = visit.next_result(source)
    assert difference(objects, original) > 10
    assert difference(masks, objects) > 1 < difference(masks, original)
    assert difference(without, original) < 3
    visit.page.get_by_label('Boxes').check()
    source, boxes = visit.next_result(source)
    assert difference(boxes, masks) > 1 < difference(boxes, original)
    visit.field('Lowest score', 'spinbutton').fill('1')
    visit.wait_for(r'^0 of \d+ objects$')
    assert difference(visit.next_result(source)[1], original) < 3
    assert len(calls) == 1
    assert visit.hosts == {visit.page.url.split('/')[2]}


def test_a_segmentation_is_shown_and_its_opacity_follows_the_slider(visit, models, calls):
    visit.choose('Config', SEGMENTOR)
    expect(visit.field('Checkpoint')).to_have_value(models[SEGMENTOR][0], timeout=MILLISECONDS)
    visit.page.locator('#examples button').first.click()
    visit.wait_for_status(r'^found in .* by \S+sem_fpn\.pth$')
    source, half = visit.next_result()
    visit.field('Opacity', 'spinbutton').fill('1')
    _, full = visit.next_result(source)
    assert full.shape == half.shape and difference(full, half) > 10
    assert len(calls) == 1
    visit.page.get_by_role('row', name=re.compile(r'^\w+ [\d.]+%$')).first.wait_for()
    assert visit.page.get_by_label('Boxes').is_hidden()


def test_an_invalid_picture_or_model_is_named_and_the_page_goes_on(
    visit, models, calls, picture, tmp_path, monkeypatch
):
    visit.find()
    visit.wait_for('^no picture is chosen: ')
    notes = tmp_path / 'notes.jpg'
    notes.write_text('no picture')
    visit.drop(notes)
    visit.wait_for('cannot identify image file')
    monkeypatch.setitem(models, 'later.py', ['later.pth'])
    visit.reload()
    visit.wait_for(r'at most 0\.25 MB')
    notes.write_bytes(bytes(2**18 + 1))
    visit.drop(notes)
    visit.wait_for('exceeds? the maximum allowed size')
    visit.drop(picture)
    visit.wait_for_status('^found in')

    planted, harmful = tmp_path / 'planted', tmp_path / 'harmful.pth'
    program = type('Program', (), dict(__reduce__=lambda _: (open, (str(planted), 'w'))))
    torch.save(dict(state_dict={}, meta=program()), harmful)
    for checkpoint, message in (
        (tmp_path / 'missing.pth', r'missing\.pth does not exist'),
        (models[SEGMENTOR][0], 'does not hold the weights of this model'),
        (harmful, r'harmful\.pth'),
    ):
        visit.choose('Checkpoint', str(checkpoint))
        visit.find()
        visit.wait_for(message)
    assert not planted.exists()
    visit.choose('Checkpoint', models[DETECTOR][0])
    visit.find()
    wait_until(lambda: len(calls) == 2)  # the page still shows the status of the first
    visit.wait_for_status(f'^found in .* by {models[DETECTOR][0]}')
    visit.choose('Config', 'later.py')  # it was not there when the page was opened first
    expect(visit.field('Checkpoint')).to_have_value('later.pth', timeout=MILLISECONDS)
