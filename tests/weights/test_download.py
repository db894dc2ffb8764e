"""Downloads: whole in the cache or not there, from a server on this machine."""

import hashlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.file_server import serving
from safetensors.torch import save

from xcit_mm import UserError, XCiT, http
from xcit_mm.weights.checkpoint import read_checkpoint
from xcit_mm.weights.download import UnreachableError, cache_path, download

MEGABYTE = 2**20


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv('MMENGINE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr(http, 'PAUSE', 0)
    with serving() as server:
        yield server


@pytest.fixture
def left(tmp_path) -> Callable[[], list[str]]:
    """What lies in the cache, without the locks."""

    def left() -> list[str]:
        files = (p for p in (tmp_path / 'cache').rglob('*') if p.is_file())
        return [p.name for p in files if p.suffix != '.lock']

    return left


def weights(size: int = 100) -> bytes:
    return save({'weight': torch.arange(size, dtype=torch.float32)})


def test_a_file_is_fetched_once_and_is_the_same(server, left):
    content = weights(MEGABYTE)
    server.files['/xcit/a.pth'] = content
    path = download(server.url('/xcit/a.pth'))
    assert path == cache_path(server.url('/xcit/a.pth'))
    assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(content).digest()
    assert path.stat().st_mode & 0o777 == 0o644
    assert download(server.url('/xcit/a.pth')) == path
    assert server.requests == ['/xcit/a.pth']
    assert left() == ['a.pth']


def test_files_of_the_same_name_are_kept_apart(server):
    server.files |= {'/one/a.pth': weights(1), '/two/a.pth': weights(2), '/a.pth?v=3': weights(3)}
    for number, path in enumerate(('/one/a.pth', '/two/a.pth', '/a.pth?v=3'), start=1):
        assert download(server.url(path)).read_bytes() == weights(number)


def test_those_that_ask_at_once_get_one_download(server):
    server.files['/a.pth'] = weights(MEGABYTE)
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(download, [server.url('/a.pth')] * 4))
    assert len(paths) == 1
    assert server.requests == ['/a.pth']


def test_a_connection_that_breaks_off_leaves_nothing(server, left):
    server.files['/a.pth'] = weights(MEGABYTE)
    server.cut.add('/a.pth')
    with pytest.raises(UserError, match=r'/a\.pth: the connection broke off after \d+ of \d+ byt'):
        download(server.url('/a.pth'))
    assert left() == []
    server.cut.clear()
    assert download(server.url('/a.pth')).read_bytes() == weights(MEGABYTE)


def test_what_has_come_is_not_asked_for_again(server, left):
    server.files['/a.pth'] = weights(MEGABYTE)
    server.versions['/a.pth'] = '"1"'
    server.cuts += [MEGABYTE] + [0] * (http.ATTEMPTS - 1)
    with pytest.raises(UserError, match='try again, and it goes on there'):
        download(server.url('/a.pth'))
    assert download(server.url('/a.pth')).read_bytes() == weights(MEGABYTE)
    assert server.ranges == [None] + [f'bytes={MEGABYTE}-'] * http.ATTEMPTS
    assert left() == ['a.pth']


def test_a_wrong_address_is_said(server, left):
    with pytest.raises(UserError, match=r'/gone\.pth: the server answers 404'):
        download(server.url('/gone.pth'))
    assert left() == []


def test_a_web_page_is_not_kept(server, left):
    server.files['/a.pth'] = b'<html>Please log in</html>'
    with pytest.raises(UserError, match=r'/a\.pth is no checkpoint: .*<html>'):
        download(server.url('/a.pth'))
    assert left() == []


def test_without_a_network_the_local_way_is_said(server):
    url = server.url('/a.pth')
    server.go_away()
    with pytest.raises(UnreachableError) as error:
        download(url)
    message = str(error.value)
    assert message.startswith(f'{url} cannot be reached (')
    assert 'name the file instead' in message
    assert str(cache_path(url)) in message


def test_a_file_of_unknown_length_is_kept_if_its_end_is_there(server, left, tmp_path):
    torch.save({'weight': torch.zeros(1000)}, tmp_path / 'a.pth')
    server.files |= {'/a.pth': (tmp_path / 'a.pth').read_bytes(), '/b.pth': weights()}
    server.unsized |= {'/a.pth', '/b.pth'}
    server.cut.add('/a.pth')
    for name in ('/a.pth', '/b.pth'):  # of the second one nobody can tell
        with pytest.raises(UserError, match='the server does not say how long the file is'):
            download(server.url(name))
    assert left() == []
    server.cut.clear()
    assert download(server.url('/a.pth')).read_bytes() == server.files['/a.pth']


@pytest.mark.parametrize(
    'url', ['http://', 'http://[::1/a.pth', 'http://h', 'http://host:abc/a.pth']
)
def test_an_address_that_is_none_is_refused(server, url):
    with pytest.raises(UserError, match=re.escape(url) + '.* is no web address'):
        download(url)


def test_no_address_leads_out_of_the_cache_or_to_a_name_too_long(server, tmp_path):
    checkpoints = tmp_path / 'cache' / 'checkpoints' / 'h'
    assert cache_path('http://h/../../x/./y.pth') == checkpoints / 'x' / 'y.pth'
    signed = cache_path(f'http://h/y.pth?signature={"0" * 500}')
    assert signed.parent == checkpoints
    assert len(signed.name) < 100
    assert signed != cache_path('http://h/y.pth?signature=1')


def test_an_unreadable_file_in_the_cache_is_named(server):
    url = server.url('/a.pth')
    server.files['/a.pth'] = b'PK\x03\x04 and no more'
    path = download(url)
    with pytest.raises(UserError, match=rf'{url} \({path}: delete it to fetch it again\)'):
        read_checkpoint(url)


def test_a_cache_that_cannot_be_written_to_is_said(server, tmp_path):
    (tmp_path / 'cache').mkdir()
    (tmp_path / 'cache' / 'checkpoints').touch()
    server.files['/a.pth'] = weights()
    with pytest.raises(UserError, match=r'cannot be kept as .*cache/checkpoints'):
        download(server.url('/a.pth'))


def test_a_backbone_starts_from_a_url(server, tmp_path):
    source = XCiT('n12', 16)
    torch.save({'model': source.state_dict()}, tmp_path / 'a.pth')
    server.files['/xcit_nano.pth'] = (tmp_path / 'a.pth').read_bytes()
    init_cfg = dict(type='Pretrained', checkpoint=server.url('/xcit_nano.pth'))
    model = XCiT('n12', 16, init_cfg=init_cfg)
    model.init_weights()
    for name, value in source.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
