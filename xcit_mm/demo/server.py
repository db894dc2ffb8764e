"""Serving the page until it is interrupted."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

from huggingface_hub import constants as hub  # which comes with Gradio
from starlette.middleware import Middleware

from ..environment import variables
from ..errors import UserError
from .page import DemoPage, gr
from .routes import NeededRoutes

KEPT_SECONDS = 3600  # that a picture stays on the disk
CLEANING_SECONDS = 600  # from one removal of older ones to the next
KEPT_VISITORS = 8  # whose predictions are in memory: of large pictures those are 300 MB each
TEMP_DIR = 'GRADIO_TEMP_DIR'  # the variable of the environment that names Gradio's folder
# The other variables that would have Gradio serve more than the page.
NO_EXTRAS = {
    'GRADIO_RUN_HISTORY': 'False',  # in an account at Hugging Face
    'GRADIO_NUM_WORKERS': '0',  # servers of files at further ports
    'GRADIO_ALLOWED_PATHS': '',  # files of this machine
}
# Where huggingface_hub finds the token of whoever serves the page, beside a file.
NO_TOKEN = dict.fromkeys(('HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN', 'HF_OIDC_RESOURCE'), '')


def serve(page: DemoPage, host: str, port: int) -> None:
    """Serve a page until Ctrl-C or SIGTERM. The arguments are those of :func:`served`."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # to remove the pictures then, too
    with served(page, host, port) as address:
        print(f'The page is at {address}; Ctrl-C ends it.', flush=True)
        try:
            Event().wait()
        except KeyboardInterrupt:
            print('The page is closed.')


@contextmanager
def served(page: DemoPage, host: str, port: int) -> Iterator[str]:
    """Serve a page during the block, from threads of this process.

    No other machine is asked for anything, and the pictures of visitors are gone at the end.
    Until then this process has no token for Hugging Face, which Gradio would use for visitors.

    Args:
        page: What to serve.
        host: Address or name of this machine; 0.0.0.0: all that it has.
        port: 1..65535.

    Yields:
        The address for a browser.

    Raises:
        UserError: If the port or the host cannot be used.
    """
    with (
        TemporaryDirectory(prefix='xcit_mm_demo_', dir=os.environ.get(TEMP_DIR)) as folder,
        variables(NO_EXTRAS | NO_TOKEN | {TEMP_DIR: folder, 'no_proxy': _no_proxy(host)}),
        _without_token_file(),
    ):
        blocks = page.build()
        try:
            address = _launch(blocks, host, port, round(page.max_upload * 2**20))
            with _cleaned(Path(folder)):
                yield address
        finally:
            blocks.close(verbose=False)


def _launch(blocks: gr.Blocks, host: str, port: int, max_bytes: int) -> str:
    try:
        _, address, _ = blocks.launch(
            server_name=host,
            server_port=port,
            max_file_size=max_bytes,
            state_session_capacity=KEPT_VISITORS,
            share=False,
            ssr_mode=False,  # which would start a Node.js where there is one
            enable_monitoring=False,
            footer_links=[],  # to Gradio's settings and its API
            app_kwargs=dict(middleware=[Middleware(NeededRoutes, max_upload=max_bytes)]),
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
def _cleaned(folder: Path) -> Iterator[None]:
    """Remove the files that visitors leave in a folder, by their age.

    Gradio does not know the parts of uploads that were cut off, and its own cleaning ends at the
    first error.
    """
    examples = set(folder.rglob('*'))
    closed = Event()

    def clean() -> None:
        while not closed.wait(CLEANING_SECONDS):
            for path in set(folder.rglob('*')) - examples:
                with suppress(OSError):  # a folder with newer files, or removed by somebody else
                    if path.stat().st_mtime < time.time() - KEPT_SECONDS:
                        (path.rmdir if path.is_dir() else path.unlink)()

    cleaning = Thread(target=clean, daemon=True)
    cleaning.start()
    try:
        yield
    finally:
        closed.set()
        cleaning.join()


def _no_proxy(host: str) -> str:
    """Gradio asks its own page whether it is there, which no proxy can answer."""
    without = os.environ.get('no_proxy') or os.environ.get('NO_PROXY')
    return ','.join(filter(None, (without, host, 'localhost')))


@contextmanager
def _without_token_file() -> Iterator[None]:
    """Have huggingface_hub find no saved token; it has read the environment already."""
    before = hub.HF_TOKEN_PATH
    hub.HF_TOKEN_PATH = os.devnull
    try:
        yield
    finally:
        hub.HF_TOKEN_PATH = before
