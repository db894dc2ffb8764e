"""A file over HTTP: what was interrupted goes on, what takes its name is whole."""

import json
import os
import re
import string
import sys
import time
from collections.abc import Callable, Iterator
from email.message import Message
from http.client import HTTPException, HTTPResponse, InvalidURL
from pathlib import Path
from typing import IO, BinaryIO
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urljoin, urlsplit
from zipfile import is_zipfile

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from .errors import UserError, printable, reason

TIMEOUT = 60  # seconds without a byte
CHUNK = 2**20  # bytes
ATTEMPTS = 5  # in a row that get no farther
PAUSE = 2  # seconds before the second attempt, twice as many before each further one
NOT_AS_ASKED, TOO_MANY = 416, 429  # HTTP's codes
MAX_SIZE = 2**34  # bytes of a file whose size is not known: ten times those of the largest models
CONTENT_RANGE = re.compile(r'bytes (\d{1,18})-\d+/(\d{1,18})')


class UnreachableError(UserError):
    """The network, or the server, is away."""


class _BrokenOffError(Exception):
    """A transfer ended before the file did; the message is the cause."""


class _NoConnectionError(_BrokenOffError):
    """It did not even begin."""


class _TooMuchError(Exception):
    """More bytes are announced, or came, than are taken."""


class Part:
    """What has come of a file, in hidden files beside the place that it is for.

    Attributes:
        path: The bytes that have come.
        version: How the server names what they are of: an ETag or a date; None if it does not,
            or not how long it is, and an interrupted transfer has to start anew.
        size: Of the whole file in bytes; None if the server does not say.
    """

    def __init__(self, target: Path) -> None:
        self.path = target.with_name(f'.{target.name}.part')
        self._note = target.with_name(f'.{target.name}.part.json')
        try:
            note = json.loads(self._note.read_text()) if self._note.is_file() else None
            self.version, self.size = note['version'], note['size']
        except (ValueError, TypeError, KeyError, RecursionError):
            self.version = self.size = None
        if type(self.size) is not int or self.size <= 0 or not _is_version(self.version):
            self.version = self.size = None

    @property
    def length(self) -> int:
        """How many bytes have come."""
        return self.path.stat().st_size if self.path.is_file() else 0

    @property
    def offset(self) -> int:
        """Where a transfer can go on."""
        return self.length if self.version else 0

    def begin(self, version: str | None, size: int | None) -> None:
        """Forget what has come, for a file of this version."""
        self.remove()
        self.version, self.size = version if size else None, size
        if self.version:
            self._note.write_text(json.dumps(dict(version=self.version, size=self.size)))

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)  # before the note: it is never that of other bytes
        self._note.unlink(missing_ok=True)
        self.version = self.size = None

    def take_name(self, target: Path) -> None:
        """Become the file, which is on the disk then."""
        with self.path.open('rb') as file:
            os.fsync(file.fileno())
        self.path.chmod(0o644)
        self.path.replace(target)
        self.remove()


def fetch(
    url: str, target: Path, check: Callable[[BinaryIO], None], size: int | None = None
) -> None:
    """Download a file, from where an earlier call or a connection broke off.

    Goes on only if the server says that it still has the same version. A connection that breaks
    off is tried again as long as each time more comes, and a few times where not. Nobody else may
    be fetching to the same place.

    Args:
        url: http:// or https://.
        target: The file to make. What has come lies beside it, hidden, until all of it has.
        check: Is given the whole file, opened, and raises a UserError if it is not the right one;
            what has come is thrown away then.
        size: Of the file in bytes, where it is known.

    Raises:
        UnreachableError: If the network or the server is away.
        UserError: If there is no such file at the address, or not of that size, or of more than
            ``MAX_SIZE`` where none is known; if the connection broke off too often; if the server
            does not say how long it is and it is no zip archive, which has its directory at the
            end.
    """
    part = Part(target)
    try:
        _receive_all(url, part, size)
        try:
            with part.path.open('rb') as file:
                check(file)
                if part.size is None and size is None and not is_zipfile(file):
                    raise UserError(
                        f'{url}: the server does not say how long the file is, so it may be cut '
                        'off; fetch it yourself and name the file'
                    )
        except UserError:
            part.remove()
            raise
        part.take_name(target)
    finally:
        if part.version is None:  # it is of no use for another time
            part.remove()


def read_url(url: str, limit: int) -> bytes:
    """Read a file over HTTP into the memory, with one attempt.

    Args:
        url: http:// or https://.
        limit: How many bytes it may have.

    Raises:
        UnreachableError: If the network or the server is away.
        UserError: If there is no such file at the address, it is larger, or the connection broke
            off.
    """
    data = bytearray()
    try:
        with _open(url) as response:
            size = response.length or 0
            for chunk in _chunks(response, limit):
                data += chunk
        if len(data) < size:
            raise _BrokenOffError('the server sent no more')
    except _TooMuchError:
        raise UserError(
            f'{url} has more than {limit / 2**20:g} MiB: fetch it yourself and name the file'
        ) from None
    except _NoConnectionError as error:
        raise UnreachableError(f'{url} cannot be reached ({error})') from None
    except _BrokenOffError as error:
        raise UserError(f'{url}: the connection broke off ({error}); try again') from None
    return bytes(data)


def _receive_all(url: str, part: Part, size: int | None) -> None:
    farthest, failures = part.offset, 0
    while part.size is None or part.offset != part.size:
        try:
            _receive(url, part, size)
            return
        except _BrokenOffError as error:
            is_first = not failures
            failures = 1 if part.offset > farthest else failures + 1
            farthest = max(farthest, part.offset)
            if isinstance(error, _NoConnectionError) and (is_first or failures == ATTEMPTS):
                raise UnreachableError(f'{url} cannot be reached ({error})') from None
            come = f'{part.length} of {part.size or "an unknown number of"} bytes ({error})'
            if failures == ATTEMPTS:
                raise UserError(
                    f'{url}: the connection broke off after {come}; try again'
                    + (', and it goes on there' if part.version else '')
                ) from None
        pause = PAUSE * 2 ** (failures - 1)
        said = printable(f'{url}: broken off after {come}; once more in {pause} s')
        print(said, file=sys.stderr)
        time.sleep(pause)


def _receive(url: str, part: Part, size: int | None) -> None:
    """One answer of the server: the rest of the file, or all of it."""
    with _open(url, part) as response:
        if response.status == 206:
            begin = CONTENT_RANGE.fullmatch(response.headers.get('Content-Range', ''))
            is_next = begin and tuple(map(int, begin.groups())) == (part.offset, part.size)
            if not is_next or _version(response) not in (None, part.version):
                part.remove()
                raise _BrokenOffError('the server sent another part than it was asked for')
        else:  # the whole: it is asked for, has changed, or the server sends no parts
            part.begin(_version(response), response.length)
        if size is not None and part.size not in (None, size):
            wrong = part.size
            part.remove()
            raise UserError(
                f'{url} has {wrong} bytes there, not the {size} that it should have: another file'
            )
        try:
            _copy(response, part, size)
        except _TooMuchError:
            part.remove()
            if size is None:
                raise UserError(
                    f'{url} has more than {MAX_SIZE / 2**30:g} GiB: fetch it yourself and name the '
                    'file'
                ) from None
            raise UserError(
                f'{url} sends more than the {size} bytes that it should have: another file'
            ) from None
    if part.length < (part.size or size or 0):
        raise _BrokenOffError('the server sent no more')


def _open(url: str, part: Part | None = None) -> HTTPResponse:
    """Ask for a file, or for the rest of one of which a part has come."""
    headers = {'User-Agent': 'xcit_mm'}
    if part and part.offset:
        headers |= {'Range': f'bytes={part.offset}-', 'If-Range': part.version}
    try:
        return _opener().open(request.Request(_in_ascii(url), headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        if part and error.code == NOT_AS_ASKED:
            part.remove()
        if error.code in (NOT_AS_ASKED, TOO_MANY) or error.code >= 500:
            raise _BrokenOffError(f'the server answers {error.code} {error.reason}') from None
        answer = str(error.reason).partition('\n')[0]
        raise UserError(
            f'{url}: the server answers {error.code} {answer}; is the address right?'
        ) from None
    except (InvalidURL, ValueError) as error:
        raise UserError(f'{url} is no web address ({error})') from None
    except (URLError, TimeoutError) as error:
        raise _NoConnectionError(getattr(error, 'reason', error)) from None
    except (HTTPException, OSError) as error:
        raise _BrokenOffError(reason(error)) from None


def _opener() -> request.OpenerDirector:
    """What asks for http:// and https:// addresses and for nothing else, through proxies as well.

    urllib's own one knows ftp://, file:// and data:, too.
    """
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler,
        request.UnknownHandler,
        request.HTTPHandler,
        request.HTTPSHandler,
        request.HTTPDefaultErrorHandler,
        _RedirectHandler,
        request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


class _RedirectHandler(request.HTTPRedirectHandler):
    """Follows a server to http:// and https:// only, and from https:// to https:// only."""

    def http_error_302(
        self, req: request.Request, fp: IO, code: int, msg: str, headers: Message
    ) -> HTTPResponse | None:
        target = headers.get('Location', '')
        try:
            scheme = urlsplit(urljoin(req.full_url, target)).scheme
        except ValueError:  # it is no address
            scheme = None
        if scheme != 'https' and (scheme, req.type) != ('http', 'http'):
            raise UserError(
                f'{req.full_url}: the server sends us on to {target}, which is not followed from '
                f'{req.type}://; fetch it yourself and name the file'
            )
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _in_ascii(url: str) -> str:
    """The address with other letters in its path and query as a browser sends them."""
    parts = urlsplit(url)
    path, query = (quote(text, safe=string.punctuation) for text in (parts.path, parts.query))
    return parts._replace(path=path, query=query).geturl()


def _version(response: HTTPResponse) -> str | None:
    """What HTTP's If-Range takes: a strong ETag, or a date."""
    tag = response.headers.get('ETag', '')
    version = tag if tag.startswith('"') else response.headers.get('Last-Modified')
    return version if _is_version(version) else None


def _is_version(value: object) -> bool:
    """Whether it can be sent in a header."""
    return isinstance(value, str) and value.isascii() and value.isprintable()


def _copy(response: HTTPResponse, part: Part, size: int | None) -> None:
    columns = (
        TextColumn('{task.description}', markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    name = part.path.name.removeprefix('.').removesuffix('.part')
    with Progress(*columns, console=Console(stderr=True)) as progress, part.path.open('ab') as file:
        task = progress.add_task(name, total=part.size or size, completed=part.length)
        for chunk in _chunks(response, (size or MAX_SIZE) - part.length):
            file.write(chunk)
            file.flush()  # a kill loses nothing
            progress.advance(task, len(chunk))


def _chunks(response: HTTPResponse, limit: int) -> Iterator[bytes]:
    """What comes, apart from what is done with it: a full disk is no broken connection."""
    announced, come = response.length or 0, 0
    try:
        while chunk := response.read1(CHUNK):
            come += len(chunk)
            if max(announced, come) > limit:
                raise _TooMuchError
            yield chunk
    except (HTTPException, OSError) as error:
        raise _BrokenOffError(reason(error)) from None
