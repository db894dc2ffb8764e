"""A web server on this machine that serves files as well or as badly as a test needs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer(ThreadingHTTPServer):
    """Serve ``files``, by path."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(('127.0.0.1', 0), Handler)
        self.files: dict[str, bytes] = {}
        self.versions: dict[str, str] = {}  # ETags; a file without one is sent as a whole only
        self.unsized: set[str] = set()  # files that are sent without their length
        self.endless: set[str] = set()  # files that are sent again and again, in chunks
        self.redirects: dict[str, str] = {}
        self.cuts: list[int] = []  # bytes that the next answers send before the connection breaks
        self.errors: list[int] = []  # codes that answer the next requests
        self.is_silent = False  # after a cut, instead of breaking the connection
        self.knows_ranges = True
        self.knows_if_range = True  # compares versions before a part is sent
        self.requests: list[str] = []  # paths
        self.ranges: list[str | None] = []  # the Range header of each request
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
        content = server.files.get(self.path)
        if self.path in server.redirects:
            self.send_response(302)
            self.send_header('Location', server.redirects[self.path])
            self.end_headers()
            return
        if content is None or server.errors:
            self.send_error(server.errors.pop(0) if server.errors else 404)
            return
        begin = self._begin()
        self.send_response(206 if begin else 200)
        if begin:
            last = len(content) - 1
            self.send_header('Content-Range', f'bytes {begin}-{last}/{len(content)}')
        version = server.versions.get(self.path)
        if version is not None:
            self.send_header('ETag', version)
        if self.path in server.endless:
            self.send_header('Transfer-Encoding', 'chunked')
        elif self.path not in server.unsized:
            self.send_header('Content-Length', str(len(content) - begin))
        self.end_headers()
        with suppress(ConnectionError):  # the client has had enough
            while self.path in server.endless:
                self.wfile.write(b'%x\r\n%b\r\n' % (len(content), content))
            end = begin + server.cuts[0] if server.cuts else None
            self.wfile.write(content[begin:end])
        if server.cuts and server.cuts.pop(0) and server.is_silent:
            server.stopped.wait()

    def _begin(self) -> int:
        """Return the first byte that is sent."""
        server, version = self.server, self.server.versions.get(self.path)
        asked = self.headers.get('Range')
        if asked is None or version is None or not server.knows_ranges:
            return 0
        if server.knows_if_range and self.headers.get('If-Range') != version:
            return 0
        return int(asked.removeprefix('bytes=').removesuffix('-'))

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
