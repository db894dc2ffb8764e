"""Requests that no page made, sent by a program: what answers them, and what is refused."""

import contextlib
import itertools
import json
import re
import socket
import time
from collections.abc import Iterable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen
from uuid import uuid4

import huggingface_hub
import pytest
from gradio import blocks
from gradio.routes import App
from helpers import ROOT, wait_until
from helpers.demo_page import HOST, free_port, make_models, served_page
from helpers.random_weights import DETECTOR
from PIL import Image

from xcit_mm.demo import DemoPage, served
from xcit_mm.demo.routes import MAX_FORM
from xcit_mm.errors import UserError

VIEW = 0.5, True, True, 0.5  # the values of the sliders and switches


@pytest.fixture(scope='module')
def models(tmp_path_factory) -> dict[str, list[str]]:
    return make_models(tmp_path_factory.mktemp('models'))


@pytest.fixture(scope='module')
def address(models, shapes_root) -> Iterator[str]:
    with served_page(models, shapes_root) as address:
        yield address


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


def test_no_request_runs_a_config_that_is_not_offered(address, models, tmp_path):
    program, planted = tmp_path / 'program.py', tmp_path / 'planted'
    program.write_text(f'open({str(planted)!r}, "w")\n')
    said = answer(address, [str(program), models[DETECTOR][0], None, *VIEW])
    assert f'the config {program} is not, or no longer, among those' in said
    assert not planted.exists()


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
