"""Requests that a program sends instead of the page: which are answered, and how."""

import json
import re
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest
from gradio import blocks
from helpers import ROOT
from helpers.random_weights import DETECTOR
from PIL import Image

META = {'_type': 'gradio.FileData'}


def get(address: str) -> str:
    return urlopen(address).read().decode()


def post(url: str, body: dict) -> None:
    urlopen(Request(url, json.dumps(body).encode(), {'Content-Type': 'application/json'}))


def function_id(address: str, name: str) -> int:
    config = re.search(r'window\.gradio_config = (.*?);</script>', get(address), re.DOTALL)[1]
    return next(f['id'] for f in json.loads(config)['dependencies'] if f['api_name'] == name)


def answer(address: str, data: list, name: str, session: str) -> str:
    """Gradio's stream of events on a request to a function of the page."""
    body = dict(data=data, fn_index=function_id(address, name), session_hash=session)
    post(f'{address}gradio_api/queue/join', body)
    events = ''
    with urlopen(f'{address}gradio_api/queue/data?session_hash={session}') as stream:
        while 'process_completed' not in events:
            line = stream.readline().decode()
            assert line, events
            events += line
    return events


def visit(address: str, data: list, name: str = 'find') -> str:
    """Open the page, which offers the models, and send a request to a function."""
    session = uuid4().hex
    assert '"success":true' in answer(address, [], 'offer', session)
    return answer(address, data, name, session)


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
    """They read no file of the machine, download nothing, and run no config."""
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
    assert 'found in' in visit(address, [DETECTOR, checkpoint, upload])
    others = str(secret), str(Path(upload['path']).parent), 'http://host/huge'
    files = [file for path in others for file in (dict(path=path, meta=META), dict(path=path))]
    not_uploaded = 'was not uploaded to this page'
    for name, data, message in (
        *(('find', [DETECTOR, checkpoint, file], not_uploaded) for file in files),
        ('find', [files[-2], checkpoint, None], not_uploaded),
        ('_draw', [None, files[-2], True, True, 0.5], not_uploaded),
        ('find', [str(program), checkpoint, upload], 'is not in the list of choices'),
    ):
        events = visit(address, data, name)
        assert '"success":false' in events and message in events
    assert not downloads and not planted.exists()
