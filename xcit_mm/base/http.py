"""Downloads over HTTP: a file is complete or absent, and an interrupted download is resumed."""

import json
import re
import string
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
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
from .files import put_in_place, synchronize

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
CONTENT_RANGE = re.compile(r'bytes (\d{1,18})-(\d{1,18})/(\d{1,18})')
CHANGED = '{} has changed while it was read: predict it again when it is complete'
# Bytes of a file whose size is not known: ten times as many as of the largest models.
MAX_SIZE = 2**34
SHOWN_SIZE = 2**24  # bytes; smaller downloads show no progress
REMEDY = 'download it yourself and name the local file'


class UnreachableError(UserError):
    """The network or the server is down."""


class BrokenConnectionError(UserError):
    """A transfer ended too early."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(f'{url}: the connection broke off ({cause}); try again')


class NoSuchPartError(BrokenConnectionError):
    """A file does not have the part that was requested."""


class Version(NamedTuple):
    """What a server says about a file: its size, and its ETag or date or None."""

    size: int
    mark: str | None


class Part:
    """The part of a file that was received, in hidden files next to the target.

    ``version`` is the server's ETag or date of the file, None if it sends none or no size; only a
    transfer of the same version is resumed. ``size`` is the size of the whole file, if it is known.
    """

    def __init__(self, target: Path) -> None:
        self.path = target.with_name(f'.{target.name}.part')
        self._note = self.path.with_suffix('.part.json')
        self.version, self.size = None, None
        with suppress(OSError, ValueError, TypeError, KeyError):  # missing or damaged
            note = json.loads(self._note.read_text(encoding='utf-8'))
            self.version, self.size = str(note['version']), int(note['size'])

    @property
    def offset(self) -> int:
        """The bytes that need not be transferred again."""
        return self.path.stat().st_size if self.version and self.path.is_file() else 0

    def begin(self, version: str | None, size: int | None) -> None:
        self.remove()
        self.version, self.size = version if size else None, size
        if self.version:
            content = json.dumps(dict(version=self.version, size=self.size))
            self._note.write_text(content, encoding='utf-8')

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)  # before its note, which never belongs to other bytes
        self._note.unlink(missing_ok=True)
        self.version = self.size = None


def fetch(
    url: str,
    target: Path,
    check: Callable[[Path], None] = lambda path: None,
    size: int | None = None,
    limit: int = MAX_SIZE,
    remedy: str = REMEDY,
) -> None:
    """Download a file, from where an earlier call or a broken connection ended.

    The file gets the name ``target`` when all of it is there. ``check`` raises a UserError for the
    path of a wrong file, which is removed then. ``size`` are the bytes of the file, if known, and
    ``limit`` the most bytes otherwise. ``remedy`` is what the user can do if the download fails.
    Only one process may fetch the same target at a time.
    """
    part = Part(target)
    farthest, failures = part.offset, 0
    try:
        while part.size is None or part.offset != part.size:
            try:
                _receive(url, part, size, limit, remedy)
                break
            except (UnreachableError, BrokenConnectionError) as error:
                is_offline = isinstance(error, UnreachableError) and not failures
                failures = 1 if part.offset > farthest else failures + 1
                farthest = max(farthest, part.offset)
                if is_offline or failures == ATTEMPTS:
                    raise
                pause = PAUSE * 2 ** (failures - 1)
                print(f'{error}; next attempt in {pause} s', file=sys.stderr)
            time.sleep(pause)
        try:
            check(part.path)
        except UserError:
            part.remove()
            raise
        synchronize(part.path)
        put_in_place(part.path, target)
        part.remove()
    finally:
        if part.version is None:  # it cannot be resumed
            part.remove()


def read_url(
    url: str, limit: int, headers: Mapping[str, str] = NO_HEADERS, sent: bytes | None = None
) -> bytes:
    """Download a file of at most ``limit`` bytes into memory, in one attempt.

    With a header Authorization, the server may redirect to itself only. ``sent`` is the body of a
    POST request; None for a GET request.
    """
    data = bytearray()
    with _open(url, headers, REMEDY, sent) as response:
        length = response.length or 0
        while chunk := _read(url, response):
            data += chunk
            if max(length, len(data)) > limit:
                raise UserError(f'{url} has more than {limit / 2**20:g} MiB; {REMEDY}')
    if len(data) < length:
        raise BrokenConnectionError(url, 'the server sent no more')
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
    with _open(url, {'Range': f'bytes={start}-{stop - 1}'}, REMEDY) as response:
        sent = CONTENT_RANGE.fullmatch(response.headers.get('Content-Range', ''))
        if response.status != PARTIAL_CONTENT or sent is None or int(sent[1]) != start:
            raise UserError(
                f'{url}: the server does not send parts of the file (range requests), which a '
                f'large image needs; {REMEDY}'
            )
        mark = response.headers.get('ETag') or response.headers.get('Last-Modified')
        found = Version(int(sent[3]), mark)
        if version not in (None, found):
            raise ChangedError(CHANGED.format(url))
        expected, data = min(stop, found.size) - start, bytearray()
        while len(data) < expected and (chunk := _read(url, response)):
            data += chunk
    if len(data) < expected:
        raise BrokenConnectionError(url, 'the server sent no more')
    return bytes(data[:expected]), found


def _receive(url: str, part: Part, size: int | None, limit: int, remedy: str) -> None:
    """Receive one answer of the server: the rest of the file, or all of it."""
    limit = limit if size is None else size
    asked = {}
    if part.offset:
        asked = {'Range': f'bytes={part.offset}-', 'If-Range': part.version}
    try:
        response = _open(url, asked, remedy)
    except NoSuchPartError:
        part.remove()
        raise
    with response:
        tag = response.headers.get('ETag', '')  # If-Range takes a strong tag, or a date
        version = tag if tag.startswith('"') else response.headers.get('Last-Modified')
        is_rest, sent = response.status == 206, response.headers.get('Content-Range', '')
        total = part.size if is_rest else response.length
        expected = total or size or 0
        too_large = f'{url} has more than {limit / 2**20:g} MiB; {remedy}'
        if total is None and size is None and not response.chunked:
            raise UserError(f'{url}: the server does not send the size of the file; {remedy}')
        if size is not None and total not in (None, size):
            raise UserError(f'{url} has {total} bytes instead of {size}; {remedy}')
        if expected > limit:
            raise UserError(too_large)
        if not is_rest:  # the file has changed, or the server sends no parts
            part.begin(version, total)
        elif version not in (None, part.version) or not sent.startswith(f'bytes {part.offset}-'):
            part.remove()
            raise BrokenConnectionError(url, 'the server sent another part than requested')
        progress = Progress(console=Console(stderr=True), disable=expected < SHOWN_SIZE)
        with progress, part.path.open('ab') as file:
            task = progress.add_task('Downloading', total=expected, completed=file.tell())
            while chunk := _read(url, response):
                if file.tell() + len(chunk) > limit:
                    raise UserError(too_large)
                file.write(chunk)
                file.flush()  # so that a killed process loses nothing
                progress.advance(task, len(chunk))
    if part.path.stat().st_size < expected:
        raise BrokenConnectionError(url, 'the server sent no more')


def _open(
    url: str, headers: Mapping[str, str], remedy: str, sent: bytes | None = None
) -> HTTPResponse:
    """Request a file, or the part of it that the headers name."""
    token = headers.get(AUTHORIZATION, '')
    if not (token.isascii() and token.isprintable()):  # errors of http.client would print it
        raise UserError(f'{url}: the token has a character that tokens cannot have; copy it again')
    headers = {'User-Agent': 'xcit_mm', **headers}
    try:
        asked = request.Request(quote(url, safe=string.punctuation), sent, headers)
        if asked.type not in ('http', 'https'):
            raise ValueError('it does not start with http:// or https://')
        return request.build_opener(_WebRedirects).open(asked, timeout=TIMEOUT)
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
        raise UnreachableError(f'{url} cannot be reached ({cause}); {remedy}') from None
    except (InvalidURL, ValueError) as error:
        raise UserError(f'{url} is not a web address ({error})') from None
    except (HTTPException, OSError) as error:
        raise BrokenConnectionError(url, reason(error)) from None


class _WebRedirects(request.HTTPRedirectHandler):
    """Follow redirects to web addresses, and from https:// to https:// only."""

    def redirect_request(self, req: request.Request, *args: Any) -> request.Request | None:
        target = args[-1]
        if not target.startswith(('https://', f'{req.type}://')):
            raise UserError(f'{req.full_url}: the server redirects to {target}; {REMEDY}')
        has_token = req.has_header(AUTHORIZATION)
        if has_token and urlsplit(target)[:2] != urlsplit(req.full_url)[:2]:
            raise UserError(
                f'{req.full_url}: the server redirects to {target}, but another server must not '
                'get the token'
            )
        return super().redirect_request(req, *args)


def _read(url: str, response: HTTPResponse) -> bytes:
    try:
        return response.read1(CHUNK)
    except (HTTPException, OSError) as error:
        raise BrokenConnectionError(url, reason(error)) from None
