"""Files over HTTP: gone on with, and whole in the end, whatever the server does."""

import errno
import io
import json
import ssl
import threading
from http.client import HTTPMessage, HTTPResponse
from pathlib import Path
from types import SimpleNamespace
from urllib.request import Request

import numpy as np
import pytest
from helpers.file_server import FileServer, serving

from xcit_mm import UserError, http
from xcit_mm.http import ATTEMPTS, UnreachableError, read_url

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
    http.fetch(server.url('/a'), target, lambda file: None, size)
    return target.read_bytes()


def interrupted(server: FileServer, target: Path, length: int) -> None:
    """A first call, of which so many bytes come."""
    server.cuts += [length] + [0] * (ATTEMPTS - 1)
    with pytest.raises(UserError, match=f'broke off after {length} of {SIZE} bytes'):
        fetched(server, target)
    assert not target.exists()
    server.ranges.clear()


@pytest.mark.parametrize('breaks_by', ['close', 'reset'])
def test_a_connection_that_breaks_off_is_made_again(server, target, breaks_by):
    server.breaks_by = breaks_by
    server.cuts = [100_000, 50_000]
    assert fetched(server, target) == CONTENT
    assert len(server.ranges) == 3
    if breaks_by == 'close':  # a reset may lose what was under way
        assert server.ranges == [None, 'bytes=100000-', 'bytes=150000-']
    assert list(target.parent.iterdir()) == [target]


def test_a_server_that_falls_silent_is_asked_again(server, target, monkeypatch):
    monkeypatch.setattr(http, 'TIMEOUT', 1)
    server.cuts, server.breaks_by = [100_000], 'silence'
    assert fetched(server, target) == CONTENT
    assert server.ranges[:2] == [None, 'bytes=100000-']


def test_another_call_goes_on_where_the_first_one_ended(server, target):
    interrupted(server, target, 100_000)
    assert fetched(server, target) == CONTENT
    assert server.ranges == ['bytes=100000-']


def test_as_long_as_more_comes_it_is_not_given_up(server, target):
    server.cuts = [10_000, 0] * 2 * ATTEMPTS
    assert fetched(server, target) == CONTENT


def test_a_server_that_sends_no_parts_is_asked_for_the_whole(server, target):
    interrupted(server, target, 100_000)
    server.knows_ranges = False
    assert fetched(server, target) == CONTENT
    server.cuts = [100_000] * ATTEMPTS
    with pytest.raises(UserError, match='broke off after 100000'):
        fetched(server, target.with_name('b'))
    assert not server.cuts


@pytest.mark.parametrize('knows_if_range', [True, False])
def test_a_file_that_changed_on_the_server_starts_anew(server, target, knows_if_range):
    interrupted(server, target, 100_000)
    server.files['/a'], server.versions['/a'] = CHANGED, '"2"'
    server.knows_if_range = knows_if_range
    assert fetched(server, target) == CHANGED


@pytest.mark.parametrize('version', [None, 'W/"1"'])
def test_without_a_version_nothing_is_kept(server, target, version):
    server.versions['/a'] = version  # a weak one is that of files which are alike
    server.cuts = [100_000] * ATTEMPTS
    with pytest.raises(UserError, match=r'broke off after 100000 of 300000 bytes .*try again$'):
        fetched(server, target)
    assert list(target.parent.iterdir()) == []
    assert server.ranges == [None] * ATTEMPTS


@pytest.mark.parametrize(
    'note',
    [
        '{"version": "\\"1\\"", "size": 30',
        '[' * 100_000,
        '{"version": "1", "size": ' + '9' * 5000 + '}',
        *(
            json.dumps(dict(version=version, size=size))
            for version, size in [
                ('"1"', 'many'),
                ('"1"', -1),
                ('"1"', True),
                ('"1"', 3e5),
                ('"1"', [SIZE]),
                (1, SIZE),
                ('"1"\r\nX: y', SIZE),
                ('"\u2603"', SIZE),
            ]
        ),
    ],
    ids=range(11),
)
def test_a_part_whose_note_is_damaged_is_not_taken(server, target, note):
    target.with_name('.a.part').write_bytes(CONTENT[:100_000])
    target.with_name('.a.part.json').write_text(note)
    assert fetched(server, target) == CONTENT
    assert server.ranges == [None]


def test_an_interruption_after_the_last_byte_loses_none(server, target):
    def interrupt(file):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        http.fetch(server.url('/a'), target, interrupt)
    assert not target.exists()
    assert fetched(server, target) == CONTENT
    assert server.requests == ['/a']


@pytest.mark.parametrize('code', [503, 429, 416])
def test_a_server_that_is_busy_or_refuses_the_part_is_asked_again(server, target, code):
    interrupted(server, target, 100_000)
    server.errors = [code]
    assert fetched(server, target) == CONTENT
    assert server.ranges == ['bytes=100000-', None if code == 416 else 'bytes=100000-']


def test_a_server_that_stays_busy_is_given_up(server, target):
    server.errors = [503] * ATTEMPTS
    with pytest.raises(UserError, match='the server answers 503'):
        fetched(server, target)
    assert not server.errors


def test_a_server_that_goes_away_is_tried_again_and_what_has_come_stays(server, target):
    def go_away() -> None:
        server.waiting.wait()
        server.go_away()
        server.stopped.set()

    server.cuts, server.breaks_by = [100_000], 'silence'
    thread = threading.Thread(target=go_away)
    thread.start()
    with pytest.raises(UnreachableError, match=r'/a cannot be reached \(.*refused'):
        fetched(server, target)
    thread.join()
    assert (target.parent / '.a.part').stat().st_size == 100_000


def test_a_file_of_another_size_is_not_downloaded(server, target):
    with pytest.raises(UserError, match='has 300000 bytes there, not the 299999 that it should'):
        fetched(server, target, SIZE - 1)
    assert list(target.parent.iterdir()) == []


def test_a_known_size_is_enough_where_the_server_says_none(server, target):
    server.unsized.add('/a')
    server.cuts = [100_000]
    assert fetched(server, target, SIZE) == CONTENT


@pytest.mark.parametrize('size', [SIZE, None])
def test_an_answer_without_end_is_given_up(server, target, monkeypatch, size):
    monkeypatch.setattr(http, 'MAX_SIZE', SIZE)
    server.endless.add('/a')
    said = (
        'sends more than the 300000 bytes that it should'
        if size
        else r'has more than 0\.000\d* GiB'
    )
    with pytest.raises(UserError, match=f'/a {said}'):
        fetched(server, target, size)
    assert list(target.parent.iterdir()) == []
    assert server.requests == ['/a']


def test_a_file_that_is_announced_as_huge_is_not_begun(server, target, monkeypatch):
    monkeypatch.setattr(http, 'MAX_SIZE', SIZE - 1)
    with pytest.raises(UserError, match=r'/a has more than 0\.000\d* GiB: fetch it yourself'):
        fetched(server, target)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize(
    'place', ['ftp://127.0.0.1:1/a', 'file:///etc/hostname', 'data:text/plain,a', 'http://[::1']
)
def test_a_redirect_leads_to_another_web_address_only(server, target, monkeypatch, place):
    monkeypatch.setenv('ftp_proxy', server.url(''))
    server.redirects['/b'] = server.url('/a')
    assert read_url(server.url('/b'), SIZE) == CONTENT
    server.redirects['/b'] = place
    server.requests.clear()
    said = '/b: the server sends us on to .*, which is not followed from http'
    for call in (
        lambda: read_url(server.url('/b'), SIZE),
        lambda: http.fetch(server.url('/b'), target, lambda file: None),
    ):
        with pytest.raises(UserError, match=said):
            call()
    assert server.requests == ['/b'] * 2 and not list(target.parent.iterdir())


@pytest.mark.parametrize(
    ('start', 'place', 'is_followed'),
    [('http', 'https', True), ('https', 'https', True), ('https', 'http', False)],
)
def test_a_redirect_does_not_leave_https(start, place, is_followed):
    def follow():
        asked, headers = Request(f'{start}://host/a'), HTTPMessage()
        asked.timeout, headers['Location'] = 1, f'{place}://other/a'
        handler = http._RedirectHandler()
        handler.parent = SimpleNamespace(open=lambda request, timeout: request)
        return handler.http_error_302(asked, io.BytesIO(), 302, 'Found', headers)

    if is_followed:
        assert follow().full_url == f'{place}://other/a'
    else:
        with pytest.raises(UserError, match='https://host/a: the server sends us on to http://oth'):
            follow()


def test_a_proxy_of_the_environment_is_asked(server, monkeypatch):
    for name in ('no_proxy', 'NO_PROXY', 'HTTP_PROXY'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('http_proxy', server.url(''))
    server.files['http://far.example/a'] = b'by proxy'
    assert read_url('http://far.example/a', SIZE) == b'by proxy'


def test_what_is_not_the_right_file_is_thrown_away(server, target):
    def refuse(file):
        assert file.read() == CONTENT
        raise UserError('not this one')

    with pytest.raises(UserError, match='not this one'):
        http.fetch(server.url('/a'), target, refuse)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize(
    ('named', 'asked'),
    [
        ('/straße.pth', '/stra%C3%9Fe.pth'),
        ('/a b.pth?key=ü', '/a%20b.pth?key=%C3%BC'),
        ("/a%20b(1)+~'c'.pth?sig=a%2Bb+c/d==", "/a%20b(1)+~'c'.pth?sig=a%2Bb+c/d=="),
    ],
)
def test_letters_of_an_address_are_sent_as_a_browser_does(server, named, asked):
    server.files[asked] = b'hello'
    assert read_url(server.url(named), SIZE) == b'hello'


@pytest.mark.parametrize('url', [f'http://{"a" * 64}.example/a', 'http://[::1/a', 'http://h:x/a'])
def test_what_is_no_address_is_an_error(target, url):
    with pytest.raises(UserError, match='is no web address'):
        http.fetch(url, target, lambda file: None)
    with pytest.raises(UserError, match='is no web address'):
        read_url(url, SIZE)


def test_a_file_that_is_read_into_the_memory_has_a_limit(server):
    assert read_url(server.url('/a'), SIZE) == CONTENT
    for unsized in (set(), {'/a'}):
        server.unsized = unsized
        with pytest.raises(UserError, match=r'/a has more than 0\.28\d+ MiB: fetch it yourself'):
            read_url(server.url('/a'), SIZE - 1)


def test_a_file_that_is_read_into_the_memory_is_whole(server):
    server.cuts = [1000]
    with pytest.raises(UserError, match=r'/a: the connection broke off .*; try again'):
        read_url(server.url('/a'), SIZE)
    with pytest.raises(UserError, match='the server answers 404'):
        read_url(server.url('/b'), SIZE)
    server.go_away()
    with pytest.raises(UnreachableError, match=r'/a cannot be reached \(.*refused'):
        read_url(server.url('/a'), SIZE)


@pytest.mark.parametrize(
    'error', [ssl.SSLError('bad record'), OSError(errno.EHOSTUNREACH, 'No route to host')]
)
def test_any_error_of_the_network_while_bytes_come_is_a_broken_connection(
    server, target, monkeypatch, error
):
    read, errors = HTTPResponse.read1, [error, error]

    def break_off(response, *args):
        if errors:
            raise errors.pop()
        return read(response, *args)

    monkeypatch.setattr(HTTPResponse, 'read1', break_off)
    with pytest.raises(UserError, match='the connection broke off'):
        read_url(server.url('/a'), SIZE)
    assert fetched(server, target) == CONTENT and not errors


def test_a_full_disk_is_no_broken_connection(server, target, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(http.Progress, 'advance', full)
    with pytest.raises(OSError, match='No space left'):
        fetched(server, target)
    assert len(server.requests) == 1
