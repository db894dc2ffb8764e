"""Types of arguments of the command lines."""

from argparse import ArgumentTypeError


def positive(text: str) -> int:
    """A number that is counted with, from 1.

    Raises:
        ArgumentTypeError: If it is something else; argparse then says which argument it is of.
    """
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f'{text}: not a positive number')
    return int(text)
