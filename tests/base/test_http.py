"""Files over HTTP: interrupted downloads are resumed, and whole in the end."""

import errno
import threading
from http.client import HTTPMessage
from pathlib import Path
from urllib.request import Request

import numpy as np
import pytest
from helpers.file_server import FileServer, serving

from xcit_mm import UserError
from xcit_mm.base import http
from xcit_mm.base.http import ATTEMPTS, UnreachableError, read_url

SIZE = 300_000
CONTENT = np.random.default_rng(0).bytes(SIZE)
CHANGED = np.random.default_rng(1).bytes(SIZE)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(http, 'PAUSE', 0)
    with serving() as server:
        server.files['/a'] = CONTENT
        server.versions['/a'] = '"1"'
        yield server


@pytest.fixture
def target(tmp_path) -> Path:
    return tmp_path / 'a'


def fetched(server: FileServer, target: Path, size: int | None = None) -> bytes:
    http.fetch(server.url('/a'), target, size=size)
    assert list(target.parent.iterdir()) == [target]
    return target.read_bytes()


def interrupt(server: FileServer, target: Path, length: int) -> None:
    """Break the connections of a first call after so many bytes."""
    server.cuts += [length] + [0] * (ATTEMPTS - 1)
    with pytest.raises(UserError, match=r'/a: the connection broke off .*; try again$'):
        fetched(server, target)
    assert not target.exists()
    server.ranges.clear()


@pytest.mark.parametrize('breaks_by', ['close', 'reset', 'silence'])
def test_a_broken_connection_is_resumed(server, target, monkeypatch, breaks_by):
    monkeypatch.setattr(http, 'TIMEOUT', 1)
    server.breaks_by = breaks_by
    server.cuts = [100_000] if breaks_by == 'silence' else [100_000, 50_000]
    assert fetched(server, target) == CONTENT
    if breaks_by == 'close':  # a reset may lose the last bytes, and a slow machine answers late
        assert server.ranges == [None, 'bytes=100000-', 'bytes=150000-']


def test_a_transfer_that_makes_progress_is_not_given_up(server, target):
    server.cuts = [10_000, 0] * 2 * ATTEMPTS
    assert fetched(server, target) == CONTENT


@pytest.mark.parametrize('change', ['no parts', 'new version', 'new version, no If-Range'])
def test_a_file_whose_rest_cannot_be_had_starts_again(server, target, change):
    interrupt(server, target, 100_000)
    server.knows_ranges = change != 'no parts'
    server.knows_if_range = 'no If-Range' not in change
    if server.knows_ranges:
        server.files['/a'], server.versions['/a'] = CHANGED, '"2"'
    assert fetched(server, target) == server.files['/a']


@pytest.mark.parametrize('version', [None, 'W/"1"'])  # the second one is that of similar files
def test_without_a_version_a_download_starts_again(server, target, version):
    server.versions['/a'] = version
    server.cuts = [100_000]
    assert fetched(server, target) == CONTENT
    assert server.ranges == [None, None]


@pytest.mark.parametrize('code', [503, 429, 416])
def test_a_busy_server_is_asked_again(server, target, code):
    interrupt(server, target, 100_000)
    server.errors = [code]
    assert fetched(server, target) == CONTENT
    assert server.ranges == ['bytes=100000-', None if code == 416 else 'bytes=100000-']
    server.errors = [503] * ATTEMPTS
    with pytest.raises(UserError, match='the server answers 503'):
        fetched(server, target.with_name('b'))
    assert not server.errors


def test_a_server_that_goes_down_is_named_and_the_part_is_kept(server, target):
    def go_away() -> None:
        server.waiting.wait()
        server.go_away()
        server.stopped.set()

    server.cuts, server.breaks_by = [100_000], 'silence'
    thread = threading.Thread(target=go_away)
    thread.start()
    with pytest.raises(UnreachableError, match=r'/a cannot be reached \(.*refused.*; the hint'):
        http.fetch(server.url('/a'), target, hint='the hint')
    thread.join()
    assert (target.parent / '.a.part').stat().st_size == 100_000


def test_a_file_of_another_or_unknown_size_is_not_downloaded(server, target):
    with pytest.raises(UserError, match='has 300000 bytes instead of 299999'):
        fetched(server, target, SIZE - 1)
    server.unsized.add('/a')
    with pytest.raises(UserError, match='the server does not send the size of the file'):
        fetched(server, target)
    assert list(target.parent.iterdir()) == []
    server.cuts = [100_000]
    assert fetched(server, target, SIZE) == CONTENT


@pytest.mark.parametrize('address', ['ftp://127.0.0.1:1/a', 'file:///etc/hostname'])
def test_redirects_to_web_addresses_alone_are_followed(server, monkeypatch, address):
    monkeypatch.setenv('ftp_proxy', server.url(''))
    server.redirects['/b'] = server.url('/a')
    assert read_url(server.url('/b'), SIZE) == CONTENT
    server.redirects['/b'] = address
    server.requests.clear()
    with pytest.raises(UserError, match='/b'):
        read_url(server.url('/b'), SIZE)
    assert server.requests == ['/b']


def test_a_redirect_does_not_leave_https():
    follow = http._WebRedirects().redirect_request
    for start, end in (('http', 'https'), ('https', 'https')):
        url = f'{end}://other/a'
        request = follow(Request(f'{start}://host/a'), None, 302, 'Found', HTTPMessage(), url)
        assert request.full_url == url
    with pytest.raises(UserError, match='https://host/a: the server redirects to http://other'):
        follow(Request('https://host/a'), None, 302, 'Found', HTTPMessage(), 'http://other/a')


def test_the_wrong_file_is_removed(server, target):
    def refuse(path):
        assert path.read_bytes() == CONTENT
        raise UserError('not this one')

    with pytest.raises(UserError, match='not this one'):
        http.fetch(server.url('/a'), target, refuse)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize(
    ('path', 'asked'),
    [
        ('/straße a.pth?key=ü', '/stra%C3%9Fe%20a.pth?key=%C3%BC'),
        ("/a%20b(1)+~'c'.pth?sig=a%2Bb+c/d==", "/a%20b(1)+~'c'.pth?sig=a%2Bb+c/d=="),
    ],
)
def test_characters_of_an_address_are_sent_as_a_browser_does(server, path, asked):
    server.files[asked] = b'hello'
    assert read_url(server.url(path), SIZE) == b'hello'


def test_an_interruption_after_the_last_byte_loses_none(server, target):
    def interrupt(path):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        http.fetch(server.url('/a'), target, interrupt, SIZE)
    assert not target.exists()
    assert fetched(server, target, SIZE) == CONTENT
    assert server.requests == ['/a']


def test_a_full_disk_is_no_broken_connection(server, target, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(http.Progress, 'advance', full)
    with pytest.raises(OSError, match='No space left'):
        fetched(server, target)
    assert len(server.requests) == 1
