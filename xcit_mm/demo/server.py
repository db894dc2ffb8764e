"""Serving the page until it is interrupted."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from threading import Event

from ..errors import UserError
from .page import DemoPage, gr

KEPT_VISITORS = 8  # whose predictions are in memory: of large pictures those are 300 MB each
TEMP_DIR = 'GRADIO_TEMP_DIR'  # the variable of the environment that names Gradio's folder


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
        _environment({TEMP_DIR: folder, 'no_proxy': _no_proxy(host)}),
    ):
        blocks = page.build()
        try:
            yield _launch(blocks, host, port, round(page.max_upload * 2**20))
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


def _no_proxy(host: str) -> str:
    """Gradio asks its own page whether it is there, which no proxy can answer."""
    without = os.environ.get('no_proxy') or os.environ.get('NO_PROXY')
    return ','.join(filter(None, (without, host, 'localhost')))


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment during the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
