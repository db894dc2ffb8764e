"""Errors of the user's input, each in one sentence."""

import difflib
import re
import signal
from collections.abc import Iterable
from pathlib import Path

MAX_LINE = 2000  # characters of a line of a message
MAX_QUOTED = 200  # characters of what it quotes from a file
# How PyTorch and oneDNN report that an allocation failed.
OUT_OF_MEMORY = re.compile(
    "can't allocate memory|out of memory|could not create a memory|DefaultCPUAllocator|bad_alloc",
    re.I,
)


def printable(text: str, max_line: int = MAX_LINE) -> str:
    """Make text that may come from a file safe to show in a terminal or a log.

    Control characters, such as in an ANSI escape, and broken Unicode become question marks.
    A line of more than ``max_line`` characters loses its middle, so that a sentence keeps its start
    and its remedy.
    """
    lines = []
    for line in text.split('\n'):
        if len(line) > max_line:
            line = f'{line[: max_line // 2]} ... {line[-max_line // 2 :]}'
        lines.append(''.join(c if c.isprintable() else '?' for c in line))
    return '\n'.join(lines)


def one_line(text: str, max_length: int = MAX_QUOTED) -> str:
    """Make text from a file printable and short enough to be part of a sentence."""
    return printable(text.replace('\n', ' '), max_length)


def did_you_mean(name: str, choices: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the end of a sentence that suggests the closest choice, or '' if none is close.

    ``cutoff`` is the lowest similarity of a suggestion, from 0 to 1.
    """
    closest = difflib.get_close_matches(name, list(choices), n=1, cutoff=cutoff)
    return f'; did you mean {closest[0]}?' if closest else ''


def list_folder_hint(path: str | Path) -> str:
    """Return where a relative path was looked for, as the end of a sentence."""
    return '' if Path(path).is_absolute() else f' (looked in {Path.cwd()})'


def reason(error: Exception) -> str:
    """Return a UserError's sentence, or the type and one line of another package's error."""
    if isinstance(error, UserError):
        return str(error)
    lines = str(error).strip().splitlines() or ['']
    # OpenVINO names places in its source first, and the cause last.
    line = lines[-1 if lines[0].startswith('Exception from') else 0]
    return printable(f'{type(error).__name__}: {line}')


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an allocation of Python or PyTorch has failed, on a CPU or a GPU."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None
    )


class UserError(Exception):
    """A wrong input. The message names the value, the place and the remedy in one sentence.

    The tools print the message without a traceback and exit with code 2. Quotes from files are
    made printable and shortened here, for every error.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class ArgumentError(UserError, ValueError):
    """An invalid value of an argument. The message names the value and the choices."""


class ChangedError(UserError):
    """A file has changed while it was used."""


class ProcessesError(UserError):
    """The processes of a run cannot continue together: one has ended, or they differ."""


class ConfigError(UserError):
    """Another package cannot build a part of a config; its error is the ``__cause__``.

    The tools print its traceback, too.
    """


class MissingOperatorError(UserError, NotImplementedError):
    """A model needs an operator that only compiled mmcv has."""


class DependencyError(UserError, ImportError):
    """A package is missing or does not fit the others. The message says what to install."""


class Interrupted(Exception):  # noqa: N818  not an error
    """A signal stopped a run at a ``place``. The tools exit with 128 plus the signal's number."""

    def __init__(self, signum: int, place: str) -> None:
        name = signal.Signals(signum).name
        super().__init__(f'stopped by {name} {place}; resume it with --resume')
        self.signum = signum
