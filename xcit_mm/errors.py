"""What went wrong on the user's side, said in one sentence."""

import signal

MAX_LINE = 2000  # characters of a line of a message
MAX_QUOTED = 200  # characters of what it quotes from a file


def printable(text: str, max_line: int = MAX_LINE) -> str:
    """Text that may come from a file, as a terminal or a log may show it.

    Control characters, such as those of an ANSI escape, and parts of broken Unicode become
    question marks. A line that is too long loses its middle: a sentence keeps its start and its
    remedy.

    Args:
        text: Any text; line breaks stay.
        max_line: The most characters a line may have.
    """
    return '\n'.join(_shortened(line, max_line) for line in text.split('\n'))


def one_line(text: str, max_length: int = MAX_QUOTED) -> str:
    """Text from a file, made printable and short, as a part of a sentence."""
    return printable(text.replace('\n', ' '), max_length)


def _shortened(line: str, max_line: int) -> str:
    if len(line) > max_line:
        half = max_line // 2
        line = f'{line[:half]} ... {line[-half:]}'
    return ''.join(c if c.isprintable() else '?' for c in line)


def reason(error: Exception) -> str:
    """The kind and the first line of another package's error, for a sentence of ours."""
    first_line = str(error).partition('\n')[0]
    return printable(f'{type(error).__name__}: {first_line}')


class UserError(Exception):
    """A wrong input; the message names the value, the place and the remedy.

    The tools print it without a traceback and exit with code 2. What the message quotes from a
    file is made printable and shortened here, for every error.

    Args:
        message: The sentence.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class ArgumentError(UserError, ValueError):
    """A value outside its choices; the message names the value and the choices."""


class DependencyError(UserError, ImportError):
    """A package that is missing, or does not fit the others; the message says which to install."""


class Interrupted(Exception):  # noqa: N818  nothing is wrong
    """A run was asked to stop, and can go on later; the tools exit with 128 and the signal.

    Args:
        signum: The number of the signal.
        place: Where the run was.
    """

    def __init__(self, signum: int, place: str) -> None:
        name = signal.Signals(signum).name
        super().__init__(f'stopped by {name} {place}; go on with --resume')
        self.signum = signum
