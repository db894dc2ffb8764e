"""The server of the page."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ...base.environment import variables
from ...base.errors import UserError
from .models import OfferedModels
from .page import build_page

KEPT_PREDICTIONS = 8  # in memory: up to 300 MB each


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

    The page takes pictures of at most ``max_upload`` MB (2**20 bytes).
    """
    # Gradio requests its own page to check that it is served. No proxy can answer that.
    no_proxy = os.environ.get('no_proxy') or os.environ.get('NO_PROXY') or 'localhost'
    page = build_page(models, examples, max_upload)
    # Gradio would keep a history of runs in the account at Hugging Face of who serves the page.
    with variables({'GRADIO_RUN_HISTORY': 'False', 'no_proxy': f'{no_proxy},{host}'}):
        try:
            _, address, _ = page.launch(
                server_name=host,
                server_port=port,
                max_file_size=round(max_upload * 2**20),
                state_session_capacity=KEPT_PREDICTIONS,
                share=False,
                ssr_mode=False,  # which would start Node.js
                show_error=True,  # such as of a picture that Pillow cannot read
                footer_links=[],  # to Gradio's settings and its API
                prevent_thread_lock=True,
                quiet=True,
            )
        except OSError as error:
            raise UserError(f'the page cannot be served at {host}, port {port} ({error})') from None
        try:
            yield address
        finally:
            page.close(verbose=False)
