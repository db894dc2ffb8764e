"""Downloads over HTTP: a file is complete or absent, and an interrupted download is resumed."""

import re
import string
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException, HTTPResponse, InvalidURL
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit

from rich.console import Console
from rich.progress import Progress

from .errors import ChangedError, UserError, reason
from .files import synchronize

TIMEOUT = 60  # seconds without data
CHUNK = 2**20  # bytes
ATTEMPTS = 5  # in a row without new data
PAUSE = 2  # seconds before the second attempt, twice as many before each further one
RANGE_ATTEMPTS = 3  # to read a part of a file
# HTTP's codes.
PARTIAL_CONTENT, RANGE_NOT_SATISFIABLE, TOO_MANY_REQUESTS = 206, 416, 429
REFUSED = (401, 403)
AUTHORIZATION = 'Authorization'  # the header that holds a token
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
CONTENT_RANGE = re.compile(r'bytes (\d{1,18})-\d{1,18}/(\d{1,18})')
CHANGED = '{} has changed while it was read: predict it again when it is complete'
SHOWN_SIZE = 2**24  # bytes; smaller downloads show no progress
HINT = 'download it yourself and name the local file'


def is_url(path: str) -> bool:
    """Return whether a file is named by a web address."""
    return path.startswith(('http://', 'https://'))


class UnreachableError(UserError):
    """The network or the server is down."""


class BrokenConnectionError(UserError):
    """A transfer ended too early."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(f'{url}: the connection broke off ({cause}); try again')


class NoSuchPartError(BrokenConnectionError):
    """A file does not have the part that was requested."""


class Version(NamedTuple):
    """What a server says about a file: its size in bytes, and its ETag or date, or None."""

    size: int
    mark: str | None


def fetch(
    url: str,
    target: Path,
    check: Callable[[Path], None] = lambda path: None,
    size: int | None = None,
    hint: str = HINT,
) -> None:
    """Download a file, from where an earlier call or a broken connection ended.

    The file gets the name ``target`` when all of it is there. Until then, it is a hidden file next
    to the target, with a note of its version, so that the bytes of two versions are never mixed.
    Only one process may fetch the same target at a time.

    Args:
        url: The address.
        target: Where the file goes.
        check: Raises a UserError for the path of a wrong file, which is removed then.
        size: The bytes of the file, if they are known.
        hint: What the user can do if the download fails.

    Raises:
        UserError: If the download fails.
    """
    part = target.with_name(f'.{target.name}.part')
    note = part.with_suffix('.version')
    failures = 0
    while True:
        before = _size(part)
        try:
            _receive(url, part, note, size, hint)
            break
        except (UnreachableError, BrokenConnectionError) as error:
            if isinstance(error, NoSuchPartError):
                note.unlink(missing_ok=True)
            is_offline = isinstance(error, UnreachableError) and not failures
            failures = 1 if _size(part) > before else failures + 1
            if is_offline or failures == ATTEMPTS:
                raise
            pause = PAUSE * 2 ** (failures - 1)
            print(f'{error}; next attempt in {pause} s', file=sys.stderr)
        time.sleep(pause)
    try:
        check(part)
    except UserError:
        part.unlink()
        note.unlink(missing_ok=True)
        raise
    synchronize(part)
    part.replace(target)
    note.unlink(missing_ok=True)


def _receive(url: str, part: Path, note: Path, size: int | None, hint: str) -> None:
    """Receive one answer of the server: the rest of the file, or all of it."""
    version = note.read_text(encoding='utf-8') if note.is_file() else ''
    offset = _size(part) if version else 0
    if offset and offset == size:
        return
    wanted = {'Range': f'bytes={offset}-', 'If-Range': version} if offset else {}
    with _open(url, wanted, hint) as response:
        tag = response.headers.get('ETag', '')  # If-Range takes a strong tag, or a date
        sent = tag if tag.startswith('"') else response.headers.get('Last-Modified', '')
        first, total = _part_in(response)
        is_rest = response.status == PARTIAL_CONTENT
        if is_rest and (first != offset or sent not in ('', version)):
            raise NoSuchPartError(url, 'the server sent another part than requested')
        if size is not None and total not in (None, size):
            raise UserError(f'{url} has {total} bytes instead of {size}; {hint}')
        expected = total or size or 0
        if not expected and not response.chunked:
            raise UserError(f'{url}: the server does not send the size of the file; {hint}')
        if not is_rest:
            note.unlink(missing_ok=True)  # before the bytes that it belongs to
        progress = Progress(console=Console(stderr=True), disable=expected < SHOWN_SIZE)
        with progress, part.open('ab' if is_rest else 'wb') as file:
            if sent and not is_rest:
                note.write_text(sent, encoding='utf-8')
            task = progress.add_task('Downloading', total=expected, completed=file.tell())
            for chunk in _chunks(url, response, expected - file.tell()):
                file.write(chunk)
                file.flush()  # so that a killed process loses nothing
                progress.advance(task, len(chunk))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def read_url(
    url: str, limit: int, headers: Mapping[str, str] = NO_HEADERS, sent: bytes | None = None
) -> bytes:
    """Download a file of at most ``limit`` bytes into memory, in one attempt.

    With a header Authorization, the server may redirect to itself only. ``sent`` is the body of a
    POST request; None for a GET request.
    """
    data = bytearray()
    with _open(url, headers, HINT, sent) as response:
        length = response.length or 0
        for chunk in _chunks(url, response, length):
            data += chunk
            if max(length, len(data)) > limit:
                raise UserError(f'{url} has more than {limit / 2**20:g} MiB; {HINT}')
    return bytes(data)


def read_range(
    url: str, start: int, stop: int, version: Version | None = None
) -> tuple[bytes, Version]:
    """Read a part of a file, up to its end, in a few attempts.

    Args:
        url: The address.
        start: The first byte.
        stop: The byte after the last one.
        version: What an earlier call returned, to compare with. Default: no comparison.

    Raises:
        ChangedError: If the file has changed.
        UserError: If the server sends whole files only, cannot be reached, answers with an error or
            stops.
    """
    for attempt in range(1, RANGE_ATTEMPTS + 1):
        try:
            return _receive_range(url, start, stop, version)
        except NoSuchPartError:  # the file is empty, or shorter than before
            raise ChangedError(CHANGED.format(url)) from None
        except (UnreachableError, BrokenConnectionError):
            if attempt == RANGE_ATTEMPTS:
                raise
        time.sleep(PAUSE * attempt)


def _receive_range(
    url: str, start: int, stop: int, version: Version | None
) -> tuple[bytes, Version]:
    with _open(url, {'Range': f'bytes={start}-{stop - 1}'}, HINT) as response:
        first, size = _part_in(response)
        if first != start:
            raise UserError(
                f'{url}: the server does not send parts of the file (range requests), which a '
                f'large image needs; {HINT}'
            )
        sent = Version(size, response.headers.get('ETag') or response.headers.get('Last-Modified'))
        if version not in (None, sent):
            raise ChangedError(CHANGED.format(url))
        expected = min(stop, size) - start
        return b''.join(_chunks(url, response, expected))[:expected], sent


def _part_in(response: HTTPResponse) -> tuple[int | None, int | None]:
    """Return the first byte of the part in an answer, and the size of the file; None if whole."""
    sent = CONTENT_RANGE.fullmatch(response.headers.get('Content-Range', ''))
    is_part = response.status == PARTIAL_CONTENT and sent is not None
    return (int(sent[1]), int(sent[2])) if is_part else (None, response.length)


def _chunks(url: str, response: HTTPResponse, expected: int) -> Iterator[bytes]:
    """Yield the bytes of an answer, at least as many as expected."""
    received = 0
    try:
        while chunk := response.read1(CHUNK):
            received += len(chunk)
            yield chunk
    except (HTTPException, OSError) as error:
        raise BrokenConnectionError(url, reason(error)) from None
    if received < expected:
        raise BrokenConnectionError(url, 'the server sent no more')


def _open(
    url: str, headers: Mapping[str, str], hint: str, sent: bytes | None = None
) -> HTTPResponse:
    """Request a file, or the part of it that the headers name."""
    token = headers.get(AUTHORIZATION, '')
    if not (token.isascii() and token.isprintable()):  # errors of http.client would print it
        raise UserError(f'{url}: the token has a character that tokens cannot have; copy it again')
    headers = {'User-Agent': 'xcit_mm', **headers}
    try:
        requested = request.Request(quote(url, safe=string.punctuation), sent, headers)
        if requested.type not in ('http', 'https'):
            raise ValueError('it does not start with http:// or https://')
        return request.build_opener(_WebRedirects).open(requested, timeout=TIMEOUT)
    except HTTPError as error:
        answer = f'the server answers {error.code} {error.reason}'
        if error.code == RANGE_NOT_SATISFIABLE:
            raise NoSuchPartError(url, answer) from None
        if error.code == TOO_MANY_REQUESTS or error.code >= 500:
            raise BrokenConnectionError(url, answer) from None
        is_refused = AUTHORIZATION in headers and error.code in REFUSED
        what = 'the token' if is_refused else 'the address'
        raise UserError(f'{url}: {answer}; check {what}') from None
    except (URLError, TimeoutError) as error:
        cause = getattr(error, 'reason', error)
        raise UnreachableError(f'{url} cannot be reached ({cause}); {hint}') from None
    except (InvalidURL, ValueError) as error:
        raise UserError(f'{url} is not a web address ({error})') from None
    except (HTTPException, OSError) as error:
        raise BrokenConnectionError(url, reason(error)) from None


class _WebRedirects(request.HTTPRedirectHandler):
    """Follow redirects to web addresses, and from https:// to https:// only."""

    def redirect_request(self, req: request.Request, *args: Any) -> request.Request | None:
        target = args[-1]
        if not target.startswith(('https://', f'{req.type}://')):
            raise UserError(f'{req.full_url}: the server redirects to {target}; {HINT}')
        has_token = req.has_header(AUTHORIZATION)
        if has_token and urlsplit(target)[:2] != urlsplit(req.full_url)[:2]:
            raise UserError(
                f'{req.full_url}: the server redirects to {target}, but another server must not '
                'get the token'
            )
        return super().redirect_request(req, *args)
