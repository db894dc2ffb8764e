"""The server of the page: the requests that it answers, and what it keeps."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

from huggingface_hub import constants as hub  # a dependency of Gradio
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..environment import variables
from ..errors import UserError
from .page import OfferedModels, build_page, gr

MAX_UPLOAD = 50  # MB of 2**20 bytes
MAX_BODY = 100_000  # bytes of a request that is not an upload
MAX_FORM = 2**20  # bytes of an upload beside the file
KEPT_SECONDS = 3600  # that a picture stays on the disk
CLEANING_SECONDS = 600
KEPT_PREDICTIONS = 8  # in memory: up to 300 MB each
TEMP_DIR = 'GRADIO_TEMP_DIR'
ENVIRONMENT = {
    'GRADIO_RUN_HISTORY': 'False',  # in an account at Hugging Face
    'GRADIO_NUM_WORKERS': '0',  # servers of files at further ports
    'GRADIO_ALLOWED_PATHS': '',  # files of this machine
    **dict.fromkeys(('HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN', 'HF_OIDC_RESOURCE'), ''),
}
# Gradio has some eighty routes, more with each version. Routes that are not listed do not exist.
UPLOAD = '/gradio_api/upload'
ROUTES = {
    'GET': (
        # The page and its files; Gradio asks for startup-events itself.
        *('/', '/theme.css', '/favicon.ico', '/assets/{path:path}', '/static/{path:path}'),
        *('/gradio_api/startup-events', '/gradio_api/app_id'),
        '/gradio_api/heartbeat/{session_hash}',
        *('/gradio_api/upload_progress', '/gradio_api/queue/data'),
        '/gradio_api/file=/{path:path}',  # without the slash Gradio fetches web addresses
    ),
    # Examples use run/predict instead of the queue.
    'POST': (UPLOAD, '/gradio_api/queue/join', '/gradio_api/run/predict'),
}


class RequestFilter:
    """ASGI middleware that answers 404 outside of ``ROUTES``, and 411 or 413 to large bodies.

    Gradio limits the size of a file, but reads other bodies of any size into memory.
    """

    def __init__(self, app: ASGIApp, max_upload: int) -> None:
        self._app, self._max_upload = app, max_upload
        self._routes = [
            Route(path, app, methods=[method]) for method, paths in ROUTES.items() for path in paths
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope['type'] != 'lifespan':
            headers = Headers(scope=scope)
            limit = self._max_upload + MAX_FORM if scope['path'] == UPLOAD else MAX_BODY
            if not any(route.matches(scope)[0] is Match.FULL for route in self._routes):
                app = PlainTextResponse('Not Found', 404)
            elif 'transfer-encoding' in headers:  # of any size
                app = PlainTextResponse('Length Required', 411, {'Connection': 'close'})
            elif int(headers.get('content-length', 0)) > limit:
                app = PlainTextResponse('Content Too Large', 413, {'Connection': 'close'})
        await app(scope, receive, send)


def serve(models: OfferedModels, host: str, port: int, *args: object) -> None:
    """Serve a page until Ctrl-C or SIGTERM. See :func:`served` for the arguments."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which removes the pictures as well
    with served(models, host, port, *args) as address:
        print(f'The page is at {address}; Ctrl-C ends it.', flush=True)
        with suppress(KeyboardInterrupt):
            Event().wait()
        print('The page is closed.')


@contextmanager
def served(
    models: OfferedModels,
    host: str,
    port: int,
    examples: Sequence[Path] = (),
    max_upload: float = MAX_UPLOAD,
) -> Iterator[str]:
    """Serve a page during the block, from threads of this process, and yield its address.

    The pictures of visitors are removed at the end. Until then this process has no token for
    Hugging Face, which Gradio would use for visitors.

    Args:
        models: The models to choose from.
        host: Address or name of this machine; 0.0.0.0 for all of them.
        port: 1..65535.
        examples: Pictures to try a model on.
        max_upload: Size of the largest picture in MB of 2**20 bytes.

    Raises:
        UserError: If the port or the host cannot be used.
    """
    # Gradio asks its own page whether it is there, which no proxy can answer.
    no_proxy = os.environ.get('no_proxy') or os.environ.get('NO_PROXY') or 'localhost'
    parent = os.environ.get(TEMP_DIR)
    with (
        TemporaryDirectory(prefix='xcit_mm_demo_', dir=parent) as folder,
        variables({**ENVIRONMENT, 'no_proxy': f'{no_proxy},{host}', TEMP_DIR: folder}),
        _without_token_file(),
    ):
        page = build_page(models, examples, max_upload)
        try:
            address = _launch(page, host, port, round(max_upload * 2**20))
            with _cleaned(Path(folder)):
                yield address
        finally:
            page.close(verbose=False)


def _launch(page: gr.Blocks, host: str, port: int, max_bytes: int) -> str:
    try:
        _, address, _ = page.launch(
            server_name=host,
            server_port=port,
            max_file_size=max_bytes,
            state_session_capacity=KEPT_PREDICTIONS,
            share=False,
            ssr_mode=False,  # which would start Node.js
            enable_monitoring=False,
            footer_links=[],  # to Gradio's settings and its API
            app_kwargs=dict(middleware=[Middleware(RequestFilter, max_upload=max_bytes)]),
            inline=False,
            prevent_thread_lock=True,
            quiet=True,
        )
    except OSError:
        raise UserError(
            f'the page cannot be served at {host}, port {port}: the port is in use, or the address '
            'is not of this machine; name others: --port, --host'
        ) from None
    return address


@contextmanager
def _without_token_file() -> Iterator[None]:
    path, hub.HF_TOKEN_PATH = hub.HF_TOKEN_PATH, os.devnull
    try:
        yield
    finally:
        hub.HF_TOKEN_PATH = path


@contextmanager
def _cleaned(folder: Path) -> Iterator[None]:
    """Remove old files of visitors; Gradio's ``delete_cache`` misses uploads that were cut off."""
    examples = set(folder.rglob('*'))
    closed = Event()

    def clean() -> None:
        while not closed.wait(CLEANING_SECONDS):
            for path in set(folder.rglob('*')) - examples:
                with suppress(OSError):  # a folder with newer files
                    if path.stat().st_mtime < time.time() - KEPT_SECONDS:
                        (path.rmdir if path.is_dir() else path.unlink)()

    thread = Thread(target=clean, daemon=True)
    thread.start()
    try:
        yield
    finally:
        closed.set()
        thread.join()
