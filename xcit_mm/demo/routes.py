"""The requests that Gradio gets to see: those that the page needs, of a moderate size.

Gradio's servers have some eighty routes, more with each version: run histories in the account of
the host, proxies, editors, an API. Whatever is not listed here is not found, new routes included.
"""

from starlette.responses import PlainTextResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

NOT_FOUND = PlainTextResponse('Not Found', 404)
TOO_LARGE = PlainTextResponse('Content Too Large', 413, headers={'Connection': 'close'})
MAX_BODY = 100_000  # bytes of a request: some texts and numbers
MAX_FORM = 2**20  # bytes of an upload beside the file
UPLOAD = '/gradio_api/upload'
NEEDED = tuple(
    Route(path, NOT_FOUND, methods=[method])
    for method, path in (
        # The page, and the files that it consists of.
        ('GET', '/'),
        ('GET', '/theme.css'),
        ('GET', '/favicon.ico'),
        ('GET', '/assets/{path:path}'),
        ('GET', '/static/{path:path}'),
        ('GET', '/gradio_api/startup-events'),  # for which Gradio itself asks
        ('GET', '/gradio_api/app_id'),  # whether it is the same after the connection was lost
        # A visitor is there, uploads a picture, has it looked at and sees the result.
        ('GET', '/gradio_api/heartbeat/{session_hash}'),
        ('POST', UPLOAD),
        ('GET', '/gradio_api/upload_progress'),
        ('POST', '/gradio_api/queue/join'),
        ('GET', '/gradio_api/queue/data'),
        ('POST', '/gradio_api/run/predict'),  # instead of the queue for an example
        # A path; Gradio also takes a web address here, and fetches it for the visitor.
        ('GET', '/gradio_api/file=/{path:path}'),
    )
)


class NeededRoutes:
    """ASGI middleware that answers 404 for all but the routes in ``NEEDED``, 413 for large bodies.

    Gradio limits the size of a file, but not the number of files in an upload, and no other body,
    all of which it would read into the memory.

    Args:
        app: What answers the other requests.
        max_upload: The largest file, in bytes.
    """

    def __init__(self, app: ASGIApp, max_upload: int) -> None:
        self._app = app
        self._max_upload = max_upload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope['type'] == 'lifespan':
            await self._app(scope, receive, send)
            return
        route = next((r for r in NEEDED if r.matches(scope)[0] is Match.FULL), None)
        if route is None:
            await NOT_FOUND(scope, receive, send)
            return
        limit = self._max_upload + MAX_FORM if route.path == UPLOAD else MAX_BODY
        request = _Request(receive, send, limit)
        try:
            await self._app(scope, request.receive, request.send)
        except Exception:
            if not request.is_too_large:
                raise
        if request.is_too_large and not request.is_answered:
            await TOO_LARGE(scope, receive, send)


class _Request:
    """A request that ends, for the app, as if the visitor had left, once its body is too large."""

    def __init__(self, receive: Receive, send: Send, limit: int) -> None:
        self._receive, self._send = receive, send
        self._room = limit
        self.is_answered = False

    @property
    def is_too_large(self) -> bool:
        return self._room < 0

    async def receive(self) -> Message:
        message = await self._receive()
        self._room -= len(message.get('body', b''))
        return {'type': 'http.disconnect'} if self.is_too_large else message

    async def send(self, message: Message) -> None:
        if self.is_answered or not self.is_too_large:
            self.is_answered = True
            await self._send(message)
