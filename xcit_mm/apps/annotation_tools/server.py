"""The server that Label Studio asks for predictions."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from ...base.errors import UserError, reason
from .backend import Backend, say

MAX_BODY = 2**26  # bytes of a request, in which tasks bring their annotations
MAX_DIGITS = len(str(MAX_BODY))  # Python converts no text of thousands of digits
TIMEOUT = 60  # seconds without data from a client
HEALTH = ('/', '/health')
SETUP, PREDICT, WEBHOOK = '/setup', '/predict', '/webhook'


def serve(backend: Backend, host: str, port: int) -> None:
    """Answer Label Studio until Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with served(backend, host, port) as address:
        print(f'Label Studio can use the model at {address}; Ctrl-C ends it.', flush=True)
        with suppress(KeyboardInterrupt):
            Event().wait()


@contextmanager
def served(backend: Backend, host: str, port: int) -> Iterator[str]:
    """Serve predictions during the block, from threads of this process, and yield the address.

    Raises:
        UserError: If the port is in use.
    """
    handler = type('Handler', (_Handler,), dict(backend=backend))
    try:
        server = ThreadingHTTPServer((host, port), handler)
    except OSError:
        raise UserError(
            f'predictions cannot be served at {host}, port {port}: the port is in use, or the '
            'address is not on this machine; change --port or --host'
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
        is_known = self._action in HEALTH
        answer = dict(status='UP', model_class='xcit_mm') if is_known else dict(error='not found')
        self._answer(200 if is_known else 404, answer)

    def do_POST(self) -> None:
        action, length = self._action, self.headers.get('Content-Length', '')
        if action not in (SETUP, PREDICT, WEBHOOK):
            self._answer(404, dict(error='not found'))
        elif not length.isdecimal() or len(length) > MAX_DIGITS or int(length) > MAX_BODY:
            self._answer(413, dict(error=f'a request has a length of at most {MAX_BODY} bytes'))
        else:
            self._answer(*self._answered(action, self.rfile.read(int(length))))

    @property
    def _action(self) -> str:
        return self.path.partition('?')[0]

    def _answered(self, action: str, data: bytes) -> tuple[int, dict[str, Any]]:
        """Return the status code and the content of the answer to a request."""
        if action == WEBHOOK:  # of a started training, for example, which is not done here
            return 201, {}
        try:
            request = _parsed(data)
            answer = self.backend.setup if action == SETUP else self.backend.predict
            return 200, answer(request)
        except UserError as error:
            code, sentence = 400, str(error)
        except Exception as error:  # without an answer, the client would learn nothing
            code, sentence = 500, reason(error)
        say(f'{action}: {sentence}')
        return code, dict(error=sentence)

    def _answer(self, code: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        try:
            self.send_response(code)
            self.send_header('Content-Type', 'application/json')
            self.send_header('Content-Length', str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except ConnectionError as error:
            say(f'{self._action}: the client did not wait for the answer ({reason(error)})')

    def log_message(self, *_: Any) -> None:
        """Print nothing for a request: Label Studio asks often whether the server is there."""


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        request = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f'the request is not valid JSON ({reason(error)})') from None
    if not isinstance(request, dict):
        raise UserError('the request is not an object of JSON')
    return request
