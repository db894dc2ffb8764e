"""The server of the page: the requests that it answers, and what it keeps."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

from huggingface_hub import constants as hub
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ...base.environment import variables
from ...base.errors import UserError
from .models import OfferedModels
from .page import build_page

MAX_BODY = 100_000  # bytes of a request that is not an upload
MAX_FORM = 2**20  # bytes of an upload in addition to the file
KEPT_SECONDS = 3600  # how long a picture stays on the disk
CLEANING_SECONDS = 600
KEPT_PREDICTIONS = 8  # in memory: up to 300 MB each
TEMP_DIR = 'GRADIO_TEMP_DIR'
ENVIRONMENT = {
    'GRADIO_RUN_HISTORY': 'False',  # in an account at Hugging Face
    'GRADIO_NUM_WORKERS': '0',  # servers of files at further ports
    'GRADIO_ALLOWED_PATHS': '',  # files of this machine
    **dict.fromkeys(('HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN', 'HF_OIDC_RESOURCE'), ''),
}
# Of Gradio's eighty routes, those that the page needs. All others do not exist, nor do new ones.
UPLOAD = '/gradio_api/upload'
GET = (
    *('/', '/theme.css', '/favicon.ico', '/assets/{path:path}', '/static/{path:path}'),
    *('/gradio_api/startup-events', '/gradio_api/app_id', '/gradio_api/heartbeat/{session_hash}'),
    *('/gradio_api/upload_progress', '/gradio_api/queue/data'),
    '/gradio_api/file=/{path:path}',  # without the slash Gradio fetches web addresses
)
POST = (UPLOAD, '/gradio_api/queue/join', '/gradio_api/run/predict')  # the last for examples


def limit_requests(app: ASGIApp, max_upload: int) -> ASGIApp:
    """Wrap an app: other routes get 404, and bodies that are large or have no length get 413.

    Gradio limits the size of a file, but reads other bodies of any size into memory.
    """
    routes = [Route(path, app, methods=['GET']) for path in GET]
    routes += [Route(path, app, methods=['POST']) for path in POST]

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        response = app
        if scope['type'] != 'lifespan':
            headers = Headers(scope=scope)
            limit = max_upload + MAX_FORM if scope['path'] == UPLOAD else MAX_BODY
            if not any(route.matches(scope)[0] is Match.FULL for route in routes):
                response = PlainTextResponse('Not Found', 404)
            elif 'transfer-encoding' in headers or int(headers.get('content-length', 0)) > limit:
                response = PlainTextResponse('Content Too Large', 413, {'Connection': 'close'})
        await response(scope, receive, send)

    return answer


def serve(models: OfferedModels, host: str, port: int, *args: object) -> None:
    """Serve a page until Ctrl-C or SIGTERM; see :func:`served`."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which removes the pictures as well
    with served(models, host, port, *args) as address:
        print(f'The page is at {address}; Ctrl-C ends it.', flush=True)
        with suppress(KeyboardInterrupt):
            while True:
                time.sleep(1)  # Ctrl-C would not end a wait for an event on Windows
        print('The page is closed.')


@contextmanager
def served(
    models: OfferedModels, host: str, port: int, examples: Sequence[Path], max_upload: float
) -> Iterator[str]:
    """Serve a page during the block, from threads of this process, and yield its address.

    The page takes pictures of at most ``max_upload`` MB (2**20 bytes), and removes them at the
    end. Until then, this process has no Hugging Face token that Gradio could use for visitors.
    """
    max_bytes = round(max_upload * 2**20)
    # Gradio requests its own page to check that it is served. No proxy can answer that.
    no_proxy = os.environ.get('no_proxy') or os.environ.get('NO_PROXY') or 'localhost'
    temporary = TemporaryDirectory(prefix='xcit_mm_demo_', dir=os.environ.get(TEMP_DIR))
    with temporary as folder, ExitStack() as stack:
        environment = {**ENVIRONMENT, 'no_proxy': f'{no_proxy},{host}', TEMP_DIR: folder}
        stack.enter_context(variables(environment))
        stack.callback(setattr, hub, 'HF_TOKEN_PATH', hub.HF_TOKEN_PATH)
        hub.HF_TOKEN_PATH = os.devnull
        page = build_page(models, examples, max_upload)
        stack.callback(page.close, verbose=False)
        try:
            _, address, _ = page.launch(
                server_name=host,
                server_port=port,
                max_file_size=max_bytes,
                state_session_capacity=KEPT_PREDICTIONS,
                share=False,
                ssr_mode=False,  # which would start Node.js
                footer_links=[],  # to Gradio's settings and its API
                app_kwargs=dict(middleware=[Middleware(limit_requests, max_upload=max_bytes)]),
                prevent_thread_lock=True,
                quiet=True,
            )
        except OSError:
            raise UserError(
                f'the page cannot be served at {host}, port {port}: the port is in use, or the '
                'address is not on this machine; change --port or --host'
            ) from None
        closed = Event()
        cleaner = Thread(target=_clean, args=(Path(folder), closed), daemon=True)
        cleaner.start()
        stack.callback(cleaner.join)
        stack.callback(closed.set)
        yield address


def _clean(folder: Path, closed: Event) -> None:
    """Remove old files of visitors; Gradio's ``delete_cache`` misses uploads that were cut off."""
    examples = set(folder.rglob('*'))
    while not closed.wait(CLEANING_SECONDS):
        for path in set(folder.rglob('*')) - examples:
            with suppress(OSError):  # a folder with newer files
                if path.stat().st_mtime < time.time() - KEPT_SECONDS:
                    (path.rmdir if path.is_dir() else path.unlink)()
