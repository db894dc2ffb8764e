"""What every tool begins with."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def imports() -> Iterator[None]:
    """Import what takes seconds; a package that is missing, or Ctrl-C, ends it with a line."""
    is_followed = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not by nohup
    if is_followed:
        signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    except ImportError as error:  # of what xcit_mm stands on; the message says what to install
        print(f'{sys.argv[0]}: {error}', file=sys.stderr)
        sys.exit(2)
    finally:
        if is_followed:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupted(number: int, frame: FrameType | None) -> None:
    """End at once: an exception would be caught, or reported, by what is being imported."""
    os.write(2, f'{sys.argv[0]}: interrupted\n'.encode(errors='replace'))
    os._exit(128 + number)
