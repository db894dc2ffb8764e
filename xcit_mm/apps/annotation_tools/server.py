"""The server that Label Studio asks for predictions.

Label Studio's own package label-studio-ml, as it is on PyPI, requires Flask 1.1.2 of 2020.
"""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Event, Thread
from typing import Any

from ...base.errors import UserError, reason
from .backend import Backend, say

MAX_BODY = 2**26  # bytes of a request, in which tasks bring their annotations
TIMEOUT = 60  # seconds without data from a client


def serve(backend: Backend, host: str, port: int) -> None:
    """Answer Label Studio until Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with served(backend, host, port) as address:
        print(f'Label Studio can use the model at {address}; Ctrl-C ends it.', flush=True)
        with suppress(KeyboardInterrupt):
            Event().wait()


@contextmanager
def served(backend: Backend, host: str, port: int) -> Iterator[str]:
    """Serve predictions during the block, from a thread of this process, and yield the address.

    It answers one request after the other, because each may need much memory.
    """
    try:
        server = HTTPServer((host, port), type('Handler', (_Handler,), dict(backend=backend)))
    except OSError as error:
        raise UserError(
            f'predictions cannot be served at {host}, port {port} ({reason(error)})'
        ) from None
    with server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f'http://{host}:{server.server_port}'
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    backend: Backend
    timeout = TIMEOUT

    def do_GET(self) -> None:
        self._answer(200, dict(status='UP', model_class='xcit_mm'))

    def do_POST(self) -> None:
        action = self.path.partition('?')[0]
        length = self.headers.get('Content-Length', '')
        # Of a page in a browser, which must not use the token. Label Studio sends none.
        if 'Origin' in self.headers:
            self._answer(403, dict(error='pages of other servers are not answered'))
        elif not length.isdecimal() or len(length) > len(str(MAX_BODY)) or int(length) > MAX_BODY:
            self._answer(413, dict(error=f'a request has at most {MAX_BODY} bytes'))
        elif action in ('/setup', '/predict'):
            self._answer(*self._answered(action, self.rfile.read(int(length))))
        else:  # such as events of a project
            self._answer(201, {})

    def _answered(self, action: str, data: bytes) -> tuple[int, dict[str, Any]]:
        """Return the status code and the content of the answer to a request."""
        answer = self.backend.setup if action == '/setup' else self.backend.predict
        try:
            return 200, answer(json.loads(data))
        except Exception as error:  # without an answer, the client would learn nothing
            say(f'{action}: {reason(error)}')
            return 400, dict(error=reason(error))

    def _answer(self, code: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(code)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Print no line for each request."""
