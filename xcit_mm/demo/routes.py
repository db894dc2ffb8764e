"""The routes of Gradio that answer: those that the page needs, and no others.

Gradio's servers have some eighty routes, more with each version: run histories in the account of
the host, proxies, editors, an API. Whatever is not listed here is not found, new routes included.
"""

from starlette.responses import PlainTextResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

NOT_FOUND = PlainTextResponse('Not Found', 404)
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
        ('POST', '/gradio_api/upload'),
        ('GET', '/gradio_api/upload_progress'),
        ('POST', '/gradio_api/queue/join'),
        ('GET', '/gradio_api/queue/data'),
        ('POST', '/gradio_api/run/predict'),  # instead of the queue for an example
        # A path; Gradio also takes a web address here, and fetches it for the visitor.
        ('GET', '/gradio_api/file=/{path:path}'),
    )
)


class NeededRoutes:
    """ASGI middleware that answers with 404 for all but the routes in ``NEEDED``.

    Args:
        app: What answers for those.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_needed = any(route.matches(scope)[0] is Match.FULL for route in NEEDED)
        answer = self._app if is_needed or scope['type'] == 'lifespan' else NOT_FOUND
        await answer(scope, receive, send)
