"""A file that names the classes of colors in label images, and one that lists classes."""

import re
from pathlib import Path

from ...base.errors import UserError
from .base import IGNORED, check_names, read_lines

NUMBERS = re.compile(r'(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(.+)')
HEXADECIMAL = re.compile(r'#?([0-9a-f]{6})[\s,;]+(.+)', re.I)
NAME_FIRST = re.compile(r'(.*[^\s,;\d].*?)[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})')
HEADER = re.compile(r'[^\d#]*\b(r|red)\b[^\d#]*', re.I)  # of a CSV file
COMMENT = re.compile(r'#(?![0-9a-f]{6}\b)|//', re.I)


def read_colors(path: Path) -> dict[int, str]:
    """Return the class of each color, 0xRRGGBB, in the order of the file.

    A line is ``R G B name``, ``#rrggbb name``, or the same in a CSV file, also with the name first.
    Several colors may have the same class. The name ``__ignore__`` stands for pixels that are
    ignored.

    Raises:
        UserError: If a line is something else, a color occurs twice, or fewer than two classes are
            listed.
    """
    classes: dict[int, str] = {}
    for place, line in read_lines(path):
        if COMMENT.match(line) or (HEADER.fullmatch(line) and not classes):
            continue
        color, name = _parsed(line, place)
        if color in classes:
            raise UserError(f'{place}: the color {in_words(color)} is already {classes[color]}')
        classes[color] = name
    if len({*classes.values()} - {IGNORED}) < 2:
        raise UserError(f'{path}: fewer than two classes: write R G B NAME in each line')
    return classes


def _parsed(line: str, place: str) -> tuple[int, str]:
    if match := HEXADECIMAL.fullmatch(line):
        color, name = int(match[1], 16), match[2]
    else:
        match, names = NUMBERS.fullmatch(line), NAME_FIRST.fullmatch(line)
        *numbers, name = (
            match.groups() if match else (*names.groups()[1:], names[1]) if names else (256, '')
        )
        if max(map(int, numbers)) > 255:
            raise UserError(
                f'{place}: {line!r} is not a color with its class: write R G B NAME, with numbers '
                'from 0 to 255, or #rrggbb NAME'
            )
        red, green, blue = map(int, numbers)
        color = red << 16 | green << 8 | blue
    (name,) = check_names([name.strip(' \t,;"\'')], Path(place))
    return color, name


def in_words(color: int) -> str:
    """Return a color 0xRRGGBB as it is written in a table."""
    return f'{color >> 16} {color >> 8 & 255} {color & 255}'


def read_names(text: str) -> list[str]:
    """Return the classes of ``--classes``: names with commas, or a file with one in each line.

    Raises:
        UserError: If the file is missing, or a name occurs twice.
    """
    path = Path(text)
    if path.is_file():
        return check_names([line for _, line in read_lines(path)], path)
    if '/' in text or path.suffix in ('.txt', '.csv', '.names'):
        raise UserError(f'--classes {text}: there is no such file')
    return check_names(text.split(','), Path('--classes'))
