"""A web server on this machine that serves files as well or as badly as a test needs."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LINGER = struct.pack('ii', 1, 0)  # closing is a reset


class FileServer(ThreadingHTTPServer):
    """Serve ``files``, by path."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(('127.0.0.1', 0), Handler)
        self.files: dict[str, bytes] = {}
        self.versions: dict[str, str] = {}  # ETags; a file without one is sent as a whole only
        self.unsized: set[str] = set()  # files that are sent without their length
        self.redirects: dict[str, str] = {}
        self.cuts: list[int] = []  # bytes that the next answers send before the connection breaks
        self.errors: list[int] = []  # codes that answer the next requests
        self.breaks_by = 'close'  # or 'reset', 'silence'
        self.knows_ranges = True
        self.knows_if_range = True  # compares versions before a part is sent
        self.requests: list[str] = []  # paths
        self.ranges: list[str | None] = []  # the Range header of each request
        self.tokens: list[str | None] = []  # the Authorization header of each request
        self.bodies: list[bytes] = []  # of POST requests
        self.waiting = threading.Event()  # set while an answer is silent
        self.stopped = threading.Event()  # set to end the silence

    def url(self, path: str) -> str:
        return f'http://127.0.0.1:{self.server_port}{path}'

    def go_away(self) -> None:
        """Refuse connections."""
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        server.requests.append(self.path)
        server.ranges.append(self.headers.get('Range'))
        server.tokens.append(self.headers.get('Authorization'))
        content = server.files.get(self.path)
        if self.path in server.redirects:
            self.send_response(302)
            self.send_header('Location', server.redirects[self.path])
            self.end_headers()
            return
        if content is None or server.errors:
            self.send_error(server.errors.pop(0) if server.errors else 404)
            return
        begin, stop = self._part(len(content))
        is_part = begin is not None
        self.send_response(206 if is_part else 200)
        if is_part:
            last = stop - 1
            self.send_header('Content-Range', f'bytes {begin}-{last}/{len(content)}')
        version = server.versions.get(self.path)
        if version is not None:
            self.send_header('ETag', version)
        if self.path not in server.unsized:
            self.send_header('Content-Length', str(stop - (begin or 0)))
        self.end_headers()
        self._send(content[begin:stop])

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers['Content-Length'])))
        self.do_GET()

    def _part(self, size: int) -> tuple[int | None, int]:
        """Return the first byte that is sent, or None for a whole file, and the end."""
        server, version = self.server, self.server.versions.get(self.path)
        asked = self.headers.get('Range')
        if asked is None or not server.knows_ranges:
            return None, size
        compared = self.headers.get('If-Range')
        if server.knows_if_range and compared not in (None, version):
            return None, size
        first, _, last = asked.removeprefix('bytes=').partition('-')
        return int(first), min(size, int(last or size) + 1)

    def _send(self, body: bytes) -> None:
        server = self.server
        is_cut = bool(server.cuts)
        self.wfile.write(body[: server.cuts.pop(0)] if is_cut else body)
        if is_cut and server.breaks_by == 'reset':
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
            self.connection.close()
        if is_cut and server.breaks_by == 'silence':
            server.waiting.set()
            server.stopped.wait()

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[FileServer]:
    """Run a server in a thread."""
    with FileServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs=dict(poll_interval=0.01))
        thread.start()
        yield server
        server.stopped.set()
        server.shutdown()
        thread.join()
