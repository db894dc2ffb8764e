"""Requests that a program sends instead of the page: which are answered, and how."""

import contextlib
import itertools
import json
import re
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from helpers.random_weights import DETECTOR
from PIL import Image

from xcit_mm.apps.demo import OfferedModels, served, server
from xcit_mm.apps.demo.page import build_page
from xcit_mm.base.errors import UserError
from xcit_mm.predict.model import Model

META = {'_type': 'gradio.FileData'}


def get(address: str) -> str:
    return urlopen(address).read().decode()


def post(url: str, body: dict) -> None:
    urlopen(Request(url, json.dumps(body).encode(), {'Content-Type': 'application/json'}))


def function_id(address: str, name: str) -> int:
    config = re.search(r'window\.gradio_config = (.*?);</script>', get(address), re.DOTALL)[1]
    return next(f['id'] for f in json.loads(config)['dependencies'] if f['api_name'] == name)


def answer(address: str, data: list, name: str = 'find') -> str:
    """Gradio's stream of events on a request to a function of the page."""
    session = uuid4().hex
    body = dict(data=data, fn_index=function_id(address, name), session_hash=session)
    post(f'{address}gradio_api/queue/join', body)
    events = ''
    with urlopen(f'{address}gradio_api/queue/data?session_hash={session}') as stream:
        while 'process_completed' not in events:
            line = stream.readline().decode()
            assert line, events
            events += line
    return events


def uploaded(address: str, path: Path) -> dict:
    """Upload a file as the page does."""
    head = f'--x\r\nContent-Disposition: form-data; name="files"; filename="{path.name}"\r\n\r\n'
    body = head.encode() + path.read_bytes() + b'\r\n--x--\r\n'
    kind = {'Content-Type': 'multipart/form-data; boundary=x'}
    file = json.load(urlopen(Request(f'{address}gradio_api/upload', body, kind)))[0]
    return dict(path=file, meta=META)


def test_requests_that_the_page_does_not_send_are_refused(
    address, models, picture, tmp_path, monkeypatch
):
    """They read no file of the machine, download nothing, run no config, and wait in the queue."""
    downloads = []

    async def download(url, **_):
        downloads.append(url)
        raise OSError('planted')

    monkeypatch.setattr(blocks.processing_utils, 'async_ssrf_protected_download', download)
    secret, program, planted = (tmp_path / name for name in ('a.png', 'config.py', 'planted'))
    Image.new('RGB', (64, 64)).save(secret)
    program.write_text(f'open({str(planted)!r}, "w")\n')
    for path in (secret, ROOT / 'setup.py'):
        with pytest.raises(HTTPError) as refused:
            urlopen(f'{address}gradio_api/file={path}')
        assert refused.value.code in (403, 404)
    checkpoint, upload = models[DETECTOR][0], uploaded(address, picture)
    assert 'found in' in answer(address, [DETECTOR, checkpoint, upload])
    others = str(secret), str(Path(upload['path']).parent), 'http://host/huge'
    files = [file for path in others for file in (dict(path=path, meta=META), dict(path=path))]
    not_uploaded = 'was not uploaded to this page'
    for name, data, message in (
        *(('find', [DETECTOR, checkpoint, file], not_uploaded) for file in files),
        ('find', [files[-2], checkpoint, None], not_uploaded),
        ('_draw', [None, files[-2], True, True, 0.5], not_uploaded),
        ('find', [str(program), checkpoint, upload], f'the config {program} with the checkpoint'),
    ):
        events = answer(address, data, name)
        assert '"success":false' in events and message in events
    assert not downloads and not planted.exists()
    body = dict(data=[None] * 3, fn_index=function_id(address, 'find'), session_hash='x')
    with pytest.raises(HTTPError, match='404'):
        post(f'{address}gradio_api/run/predict', body)


def test_visitors_wait_for_each_other(address, models, picture, monkeypatch):
    original, running, most = Model.predict, [], []

    def predict(self, *args):
        running.append(self)
        time.sleep(0.2)
        most.append(len(running))
        try:
            return original(self, *args)
        finally:
            running.pop()

    monkeypatch.setattr(Model, 'predict', predict)
    data = [DETECTOR, models[DETECTOR][0], uploaded(address, picture)]
    with ThreadPoolExecutor(3) as visitors:
        answers = [visitors.submit(answer, address, data) for _ in range(3)]
        assert all('found in' in events.result() for events in answers)
    assert most == [1, 1, 1]


def all_routes(routes: Iterable) -> Iterator[str]:
    """Paths of routes, including those of routers that FastAPI includes."""
    for route in routes:
        router = getattr(route, 'original_router', None)
        yield from [route.path] if router is None else all_routes(router.routes)


def test_only_the_routes_of_the_page_answer(address):
    app = App.create_app(build_page(OfferedModels(dict, False), [], 1))
    paths, needed = (
        {re.sub(r'{.*?}', 'x', path).rstrip('/') for path in group}
        for group in (all_routes(app.routes), (*server.GET, *server.POST, '/gradio_api/file=x'))
    )
    assert len(paths) > 60
    part = urlsplit(address)
    with contextlib.closing(HTTPConnection(part.hostname, part.port)) as connection:
        for path in {*paths, '/gradio_api/file=http://host/a'} - needed:
            for method in ('GET', 'POST', 'HEAD'):
                connection.request(method, path, headers={'x-gradio-history-bucket': 'a/b'})
                response = connection.getresponse()
                assert (response.status, response.read() or b'Not Found') == (404, b'Not Found')


@pytest.mark.parametrize('is_chunked', [False, True])
def test_no_request_is_larger_than_the_page_needs(address, is_chunked):
    part = urlsplit(address)
    too_large = 2 * 2**20 + server.MAX_FORM
    for path, size in {'queue/join': 200_000, 'run/predict': 200_000, 'upload': too_large}.items():
        connection = HTTPConnection(part.hostname, part.port)
        chunks = itertools.repeat(b'[' * 2**16, size // 2**16 + 1)
        body = chunks if is_chunked else b''.join(chunks)
        # The page answers before it has read all of the body.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request('POST', f'/gradio_api/{path}', body)
        with connection.getresponse() as response:
            assert response.status == 413
    assert 'gradio' in get(address)


def test_files_of_visitors_are_removed_by_age(serve_page, monkeypatch, picture, tmp_path):
    monkeypatch.setenv('GRADIO_TEMP_DIR', str(tmp_path))
    monkeypatch.setattr(server, 'CLEANING_SECONDS', 0.1)
    with serve_page() as address:
        (folder,) = tmp_path.glob('xcit_mm_demo_*')
        examples = {path for path in folder.rglob('*') if path.is_file()}
        whole = Path(uploaded(address, picture)['path'])
        cut = folder / 'tmp_of_an_upload'
        cut.write_bytes(b'a part')
        time.sleep(0.5)
        assert whole.is_file() and cut.is_file()
        monkeypatch.setattr(server, 'KEPT_SECONDS', -1)
        wait_until(lambda: not whole.exists() and not cut.exists())
        assert examples and all(path.is_file() for path in examples)
    assert not folder.exists()


def test_a_page_has_no_token_of_its_host_and_a_port_of_its_own(serve_page, monkeypatch, tmp_path):
    for name in ('HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN'):
        monkeypatch.setenv(name, 'hf_environment')
    (tmp_path / 'token').write_text('hf_saved')
    monkeypatch.setattr(huggingface_hub.constants, 'HF_TOKEN_PATH', str(tmp_path / 'token'))
    monkeypatch.setenv('GRADIO_RUN_HISTORY', 'True')
    with serve_page() as address:
        assert huggingface_hub.get_token() is None
        assert '"run_history":false' in get(address)
        port = urlsplit(address).port
        with pytest.raises(UserError, match=f'port {port}: the port is in use'):
            served(OfferedModels(dict, False), '127.0.0.1', port, [], 1).__enter__()
    assert huggingface_hub.get_token() == 'hf_environment'
    monkeypatch.delenv('HF_TOKEN')
    monkeypatch.delenv('HUGGING_FACE_HUB_TOKEN')
    assert huggingface_hub.get_token() == 'hf_saved'
