"""The page in a real browser, what it says of wrong input, and what it refuses."""

import contextlib
import itertools
import json
import os
import re
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen
from uuid import uuid4

import cv2
import huggingface_hub
import numpy as np
import pytest
import torch
from conftest import PATIENCE, ROOT, wait_until
from gradio import blocks
from gradio.routes import App
from PIL import Image
from playwright.sync_api import expect
from random_weights import DETECTOR, SEGMENTOR, save_random_weights

from xcit_mm.demo import DemoPage, choices, find_models, pictures, predictor, served
from xcit_mm.demo.predictor import Predictor
from xcit_mm.demo.routes import MAX_FORM
from xcit_mm.errors import UserError
from xcit_mm.inference import load_model

# Everything is a circle, with a score of 0.95, and its mask fills its box.
CERTAIN = {'bbox_head.fc_cls': (4.0, 0, 0, 0), 'mask_head.conv_logits': (4.0, 4, 4)}
MAX_UPLOAD = 0.25  # MB
HOST = '127.0.0.1'
VIEW = 0.5, True, True, 0.5  # the values of the sliders and switches
TIMEOUT = PATIENCE * 1000  # ms


@pytest.fixture(scope='module')
def models(tmp_path_factory) -> dict[str, list[str]]:
    """A detector that is sure of everything, and a segmentor with random weights."""
    folder = tmp_path_factory.mktemp('models')
    detector = save_random_weights(DETECTOR, folder / 'mask_rcnn.pth')
    checkpoint = torch.load(detector)
    for layer, biases in CERTAIN.items():
        checkpoint['state_dict'][f'roi_head.{layer}.weight'].zero_()
        checkpoint['state_dict'][f'roi_head.{layer}.bias'][:] = torch.tensor(biases)
    torch.save(checkpoint, detector)
    segmentor = save_random_weights(SEGMENTOR, folder / 'sem_fpn.pth')
    return {DETECTOR: [str(detector)], SEGMENTOR: [str(segmentor)]}


@pytest.fixture(scope='module')
def asked() -> list[str]:
    """The checkpoints of all predictions so far."""
    return []


@pytest.fixture(scope='module')
def address(models, asked, shapes_root) -> Iterator[str]:
    examples = sorted((shapes_root / 'coco/val2017').glob('*.jpg'))[:2]
    page = DemoPage(lambda: dict(models), True, examples, MAX_UPLOAD)
    predict = Predictor.predict

    def counted(self, config, checkpoint, image):
        asked.append(checkpoint)
        return predict(self, config, checkpoint, image)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Predictor, 'predict', counted)
        with served(page, HOST, free_port()) as address:
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


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        return one.getsockname()[1]


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
    visit, address, models, shapes_root, tmp_path
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

    program = tmp_path / 'program.py'
    program.write_text(f'open({str(planted)!r}, "w")\n')
    said = answer(address, [str(program), models[DETECTOR][0], None, *VIEW])
    assert f'the config {program} is not, or no longer, among those' in said
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


def answer(address: str, data: list) -> str:
    """What a request to find something that no page made is told, as Gradio's stream of events."""
    config = re.search(r'window\.gradio_config = (.*?);</script>', get(address), re.DOTALL)[1]
    [function] = [f for f in json.loads(config)['dependencies'] if f['api_name'] == '_find']
    session = uuid4().hex
    body = {'data': data, 'fn_index': function['id'], 'session_hash': session}
    kind = {'Content-Type': 'application/json'}
    urlopen(Request(f'{address}gradio_api/queue/join', json.dumps(body).encode(), kind))
    said = ''
    with urlopen(f'{address}gradio_api/queue/data?session_hash={session}') as stream:
        while 'process_completed' not in said:
            line = stream.readline().decode()
            assert line, said
            said += line
    return said


def get(address: str) -> str:
    return urlopen(address).read().decode()


def uploaded(address: str, path: Path) -> str:
    """The place of a file that was uploaded as the page does it."""
    head = f'--x\r\nContent-Disposition: form-data; name="files"; filename="{path.name}"\r\n\r\n'
    body = head.encode() + path.read_bytes() + b'\r\n--x--\r\n'
    kind = {'Content-Type': 'multipart/form-data; boundary=x'}
    return json.load(urlopen(Request(f'{address}gradio_api/upload', body, kind)))[0]


def test_no_request_reads_other_files_of_the_machine(address, models, tmp_path):
    secret = tmp_path / 'secret.png'
    Image.new('RGB', (64, 64)).save(secret)
    for path in (secret, ROOT / 'setup.py'):
        with pytest.raises(HTTPError) as refused:
            urlopen(f'{address}gradio_api/file={path}')
        assert refused.value.code in (403, 404)

    meta = {'_type': 'gradio.FileData'}
    chosen = DETECTOR, models[DETECTOR][0]
    own = dict(path=uploaded(address, secret), meta=meta)
    assert 'objects, found in' in answer(address, [*chosen, own, *VIEW])
    for picture in (dict(path=str(secret), meta=meta), dict(path=str(secret))):
        said = answer(address, [*chosen, picture, *VIEW])
        assert '"success":false' in said
        assert 'objects, found in' not in said


@pytest.mark.parametrize('place', [0, 2, 3])  # of the config, of the picture, of a slider
def test_no_request_makes_the_page_download(address, models, monkeypatch, place):
    asked = []

    async def download(url, **_):
        asked.append(url)
        raise OSError('planted')

    monkeypatch.setattr(blocks.processing_utils, 'async_ssrf_protected_download', download)
    data = [DETECTOR, models[DETECTOR][0], None, *VIEW]
    data[place] = dict(path='http://host/huge', meta={'_type': 'gradio.FileData'})
    said = answer(address, data)
    assert '"success":false' in said and 'http://host/huge was not uploaded to this page' in said
    assert not asked


# Routes of Gradio, by what they do; those beyond the second list are new to us.
NEEDED = {
    *('/', '/theme.css', '/favicon.ico', '/assets/{}', '/static/{}'),
    *(f'/gradio_api/{path}' for path in ('startup-events', 'app_id', 'heartbeat/{}', 'upload')),
    *(f'/gradio_api/{path}' for path in ('upload_progress', 'queue/join', 'queue/data')),
    *('/gradio_api/file={}', '/gradio_api/run/{}'),  # a part of what these do
}
DENIED = {
    # Of accounts, those of the host at Hugging Face included.
    *('/login', '/logout', '/login/huggingface', '/login/callback'),
    *(f'/gradio_api/{path}' for path in ('user', 'login_check', 'token')),
    *(f'/gradio_api/run-history/{path}' for path in ('connect', 'buckets', 'records')),
    *('/gradio_api/run-history/records/{}/{}/assets/{}', '/gradio_api/runs'),
    # For programs.
    *('/openapi.json', '/gradio_api/openapi.json', '/gradio_api/info', '/config'),
    *(f'/gradio_api/{path}' for path in ('api/{}', 'call/{}', 'call/{}/{}')),
    *('/gradio_api/call/v2/{}', '/gradio_api/call/v2/{}/{}', '/gradio_api/queue/status'),
    # For other pages than this one.
    *('/gradio_api/proxy={}', '/gradio_api/file/{}', '/gradio_api/custom_component/{}/{}/{}/{}'),
    *('/gradio_api/component_server', '/svelte/{}', '/gradio_api/deep_link', '/robots.txt'),
    *('/gradio_api/stream/{}', '/gradio_api/stream/{}/close', '/gradio_api/process_recording'),
    *('/pwa_icon', '/pwa_icon/{}', '/manifest.json', '/gradio_api/theme.css'),
    *(f'/gradio_api/stream/{{}}/{{}}/{{}}/{path}' for path in ('playlist.m3u8', '{}.{}')),
    *('/gradio_api/stream/{}/{}/{}/playlist-file', '/gradio_api/reset', '/gradio_api/cancel'),
    # For developers.
    *('/gradio_api/dev/reload', '/monitoring', '/monitoring/summary', '/monitoring/{}'),
    *(f'/gradio_api/{path}' for path in ('vibe-edit', 'undo-vibe-edit', 'vibe-code')),
    *('/gradio_api/vibe-starter-queries',),
    *(f'/gradio_api/profiling/{path}' for path in ('traces', 'summary', 'clear')),
}


def flat(routes: Iterable) -> Iterator:
    """Routes, with those of routers that FastAPI includes."""
    for route in routes:
        included = getattr(route, 'original_router', None)
        yield from [route] if included is None else flat(included.routes)


def test_every_route_of_gradio_is_known():
    """One that a new version brings is not found on the page; is it one that the page needs?"""
    blocks = DemoPage(lambda: {}).build()
    assert blocks.run_history  # unless it is launched by us
    routes = {route.path for route in flat(App.create_app(blocks).routes)}
    found = {re.sub(r'\{[^}]*\}', '{}', path).rstrip('/') or '/' for path in routes}
    assert found - NEEDED - DENIED == set()
    assert found >= NEEDED


def test_no_route_of_gradio_answers_but_those_of_the_page(address):
    server = urlsplit(address)
    connection = HTTPConnection(server.hostname, server.port)
    beside = ['/gradio_api/file=http://host/a', '/gradio_api/run/_find', '/gradio_api/mcp/sse']
    paths = [path.replace('{}', 'x') for path in DENIED] + beside
    answers = set()
    for path in (*paths, *(f'{path}/' for path in paths)):
        for method in ('GET', 'POST', 'HEAD'):
            connection.request(method, path, headers={'x-gradio-history-bucket': 'a/b'})
            response = connection.getresponse()
            answers.add((response.status, response.read() or b'Not Found'))
    connection.close()
    assert answers == {(404, b'Not Found')}


@pytest.mark.parametrize(
    ('path', 'kind', 'size'),
    [
        ('queue/join', 'application/json', 200_000),
        ('run/predict', 'application/json', 200_000),
        ('upload', 'multipart/form-data; boundary=x', 2 * 2**20 + MAX_FORM),
    ],
)
@pytest.mark.parametrize('is_chunked', [False, True])
def test_no_request_is_larger_than_the_page_needs(address, path, kind, size, is_chunked):
    server = urlsplit(address)
    connection = HTTPConnection(server.hostname, server.port)
    chunks = (b'[' * 2**16 for _ in range(0, size, 2**16))
    if path == 'upload':  # a field that is no file, which Gradio would collect in memory
        head = b'--x\r\nContent-Disposition: form-data; name="x"\r\n\r\n'
        chunks = itertools.chain([head], chunks)
    body = chunks if is_chunked else b''.join(chunks)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is not read to its end
        connection.request('POST', f'/gradio_api/{path}', body, {'Content-Type': kind})
    with connection.getresponse() as response:
        assert response.status == 413
    assert 'gradio' in get(address)


def test_what_visitors_leave_is_removed_by_its_age(models, monkeypatch, shapes_root, tmp_path):
    """Whole pictures and cut uploads, but no examples."""
    monkeypatch.setenv('GRADIO_TEMP_DIR', str(tmp_path))
    monkeypatch.setattr('xcit_mm.demo.server.CLEANING_SECONDS', 0.1)
    picture, example, *_ = shapes_root.rglob('*.jpg')
    with served(DemoPage(lambda: models, examples=[example]), HOST, free_port()) as address:
        (folder,) = tmp_path.glob('xcit_mm_demo_*')
        before = {path for path in folder.rglob('*') if path.is_file()}
        whole = Path(uploaded(address, picture))
        cut = folder / 'tmp_of_an_upload'
        cut.write_bytes(b'a part')
        time.sleep(0.5)
        assert whole.is_file() and cut.is_file()
        monkeypatch.setattr('xcit_mm.demo.server.KEPT_SECONDS', -1)
        wait_until(lambda: not whole.exists() and not cut.exists())
        assert before and all(path.is_file() for path in before)


@pytest.mark.parametrize(
    'view',
    [('NaN', True, True, 0.5), (0.3, 'x', True, 0.5), (0.3, True, True, 1e308), (None,) * 4],
)
def test_values_that_no_page_sends_are_said(address, models, shapes_root, view):
    meta = {'_type': 'gradio.FileData'}
    own = dict(path=uploaded(address, next(shapes_root.rglob('*.jpg'))), meta=meta)
    said = answer(address, [DETECTOR, models[DETECTOR][0], own, *view])
    assert 'is not a number between 0 and 1' in said or 'is neither True nor False' in said


def test_a_folder_is_not_a_picture(address, models, shapes_root):
    folder = Path(uploaded(address, next(shapes_root.rglob('*.jpg')))).parent
    picture = dict(path=str(folder), meta={'_type': 'gradio.FileData'})
    said = answer(address, [DETECTOR, models[DETECTOR][0], picture, *VIEW])
    assert 'was not uploaded to this page' in said


def test_a_page_has_no_token_of_its_host(models, monkeypatch, tmp_path):
    for name in ('HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN'):
        monkeypatch.setenv(name, 'hf_environment')
    saved = tmp_path / 'token'
    saved.write_text('hf_saved')
    monkeypatch.setattr(huggingface_hub.constants, 'HF_TOKEN_PATH', str(saved))
    monkeypatch.setenv('GRADIO_RUN_HISTORY', 'True')
    page = DemoPage(lambda: models)
    built = []
    monkeypatch.setattr(page, 'build', lambda: built.append(DemoPage.build(page)) or built[0])
    assert huggingface_hub.get_token() == 'hf_environment'
    with served(page, HOST, free_port()):
        assert huggingface_hub.get_token() is None
        assert not built[0].run_history
    assert huggingface_hub.get_token() == 'hf_environment'
    monkeypatch.delenv('HF_TOKEN')
    monkeypatch.delenv('HUGGING_FACE_HUB_TOKEN')
    assert huggingface_hub.get_token() == 'hf_saved'


def test_a_port_in_use_is_said(models):
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f'port {port}: the port is in use'):
            served(DemoPage(lambda: models), HOST, port).__enter__()


def test_runs_are_offered_newest_first_and_released_weights_with_their_config(tmp_path):
    configs, work_dirs = tmp_path / 'configs', tmp_path / 'work_dirs'
    for age, name in enumerate(('old/a.py', 'old/iter_1.pth', 'old/iter_2.pth', 'new/b.py')):
        write(work_dirs / name, age)
    write(work_dirs / 'new/iter_9.pth', 9)
    write(work_dirs / 'new/not_finite_iter_10_rank_0.pth', 10)
    write(work_dirs / 'unfinished/c.py', 10)
    write(work_dirs / 'broken/d.py', 10)
    write(work_dirs / 'broken/not_finite_iter_1_rank_0.pth', 10)
    write(configs / 'released.py', 0, '"""A model.\n\nWeights: https://host/w.pth\n"""\n')
    write(configs / 'broken.py', 0, 'def\n')
    found = find_models(configs, work_dirs)
    assert list(found.items()) == [
        (f'{work_dirs}/new/b.py', [f'{work_dirs}/new/iter_9.pth']),
        (f'{work_dirs}/old/a.py', [f'{work_dirs}/old/iter_2.pth', f'{work_dirs}/old/iter_1.pth']),
        (f'{configs}/broken.py', []),
        (f'{configs}/released.py', ['https://host/w.pth']),
    ]
    assert list(find_models(tmp_path / 'none', work_dirs / 'new')) == [f'{work_dirs}/new/b.py']


def write(path: Path, time: float, text: str = '') -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (time, time))


@pytest.mark.parametrize(
    ('config', 'checkpoint', 'any_checkpoint', 'sentence'),
    [
        ('b.py', '1.pth', True, 'the config b.py is not, or no longer, among those'),
        (None, '1.pth', True, 'no config is chosen'),
        ('a.py', None, True, 'no checkpoint is chosen for a.py: take one of the list, or type'),
        ('a.py', '', False, 'no checkpoint is chosen for a.py'),
        ('a.py', '2.pth', False, 'the checkpoint 2.pth is not, or no longer, among those'),
        ('a.py', 'https://host/2.pth', False, 'the checkpoint https://host/2.pth is not'),
    ],
)
def test_only_what_is_offered_can_be_asked_for(config, checkpoint, any_checkpoint, sentence):
    offered = {'a.py': ['1.pth']}
    with pytest.raises(UserError, match=f'^{re.escape(sentence)}'):
        choices.require_offered(config, checkpoint, offered, any_checkpoint)
    choices.require_offered('a.py', '1.pth', offered, any_checkpoint)
    choices.require_offered('a.py', '2.pth', offered, any_checkpoint=True)


def test_a_checkpoint_can_be_typed_only_where_the_page_is_started_for_it(monkeypatch, tmp_path):
    tool = runpy.run_path(str(ROOT / 'tools/demo.py'))
    write(tmp_path / 'a.py', 0)
    pages = []
    monkeypatch.setitem(tool['main'].__globals__, 'serve', lambda page, *_: pages.append(page))
    for options in ([], ['--any-checkpoint']):
        monkeypatch.setattr(sys, 'argv', ['demo.py', '--configs', str(tmp_path), *options])
        tool['main']()
    typed = [
        [block.allow_custom_value for block in page.build().blocks.values() if is_dropdown(block)]
        for page in pages
    ]
    assert typed == [[False, False], [False, True]]


def is_dropdown(block) -> bool:
    return block.get_block_name() == 'dropdown'


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


def test_a_large_picture_is_shrunk_and_a_huge_one_refused(tmp_path, monkeypatch):
    path = tmp_path / 'wide.png'
    image = np.zeros((300, 4096, 3), np.uint8)
    image[:, :2048, 0] = 255  # red
    Image.fromarray(image).save(path)
    read = pictures.read_picture(str(path), MAX_UPLOAD)
    assert read.shape == (150, 2048, 3)
    assert (read[:, :1000] == (255, 0, 0)).all()
    assert not read[:, 1100:].any()

    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 500_000)
    with pytest.raises(UserError, match=r'wide\.png cannot be used: it has more than 1 million'):
        pictures.read_picture(str(path), MAX_UPLOAD)
    with pytest.raises(UserError, match=r'wide\.png cannot be used: it has more than 0\.001 MB'):
        pictures.read_picture(str(path), 0.001)


def test_a_picture_is_decoded_by_what_measured_it(tmp_path):
    """A TIFF with two widths: OpenCV takes the first one, Pillow the last."""
    tags = {256: [3000, 3], 257: [3000], 259: [1], 262: [1], 258: [8], 273: [8], 277: [1]}
    tags |= {278: [3000], 279: [3000 * 3000]}
    entries = [(tag, value) for tag in sorted(tags) for value in tags[tag]]
    pixels = bytes(3000 * 3000)
    path = tmp_path / 'two.tif'
    path.write_bytes(
        struct.pack('<2sHI', b'II', 42, 8 + len(pixels))
        + pixels
        + struct.pack('<H', len(entries))
        + b''.join(struct.pack('<HHII', tag, 4, 1, value) for tag, value in entries)
        + bytes(4)
    )
    assert cv2.imread(str(path)).shape == (3000, 3000, 3)
    assert pictures.read_picture(str(path), max_upload=20).shape == (2048, 2, 3)


@pytest.mark.parametrize('kind', ['BMP', 'GIF', 'JPEG', 'PNG', 'TIFF', 'WEBP'])
def test_pictures_of_a_browser_are_read_upright(tmp_path, kind):
    path = tmp_path / 'picture'
    colours = np.zeros((20, 30, 3), np.uint8)
    colours[:, :15] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    options = dict(exif=exif) if kind in ('JPEG', 'PNG', 'TIFF', 'WEBP') else {}
    Image.fromarray(colours).save(path, kind, **options)
    expected = np.rot90(colours, -1) if options else colours
    read = pictures.read_picture(str(path), MAX_UPLOAD)
    assert read.shape == expected.shape
    assert np.abs(read.astype(int) - expected).mean() < 3
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(UserError, match='picture cannot be used: it is'):
        pictures.read_picture(str(path), MAX_UPLOAD)


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
