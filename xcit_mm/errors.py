"""What went wrong on the user's side, said in one sentence."""

import signal


def reason(error: Exception) -> str:
    """The kind and the first line of another package's error, for a sentence of ours."""
    first_line = str(error).partition('\n')[0]
    return f'{type(error).__name__}: {first_line}'


class UserError(Exception):
    """A wrong input; the message names the value, the place and the remedy.

    The tools print it without a traceback and exit with code 2.
    """


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
