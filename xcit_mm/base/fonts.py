"""The fonts of pictures: DejaVu Sans, and fonts of this system for letters that it lacks."""

import logging
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.logging import print_log
from PIL import ImageDraw, ImageFont

NO_FONT = 'LastResort'  # fonts of macOS and matplotlib that have a box for every letter


class Writer(NamedTuple):
    """Writes texts into pictures.

    Attributes:
        size: The height of a line, in pixels.
    """

    size: int

    def length(self, text: str) -> float:
        """Return the width of a text in pixels."""
        return sum(_font(file, self.size).getlength(part) for file, part in font_runs(text))

    def write(
        self,
        draw: ImageDraw.ImageDraw,
        place: tuple[float, float],
        text: str,
        fill: Any,
        anchor: str = 'lm',
    ) -> None:
        """Write a text at a place x, y; ``anchor`` is Pillow's, and its second letter is m."""
        x, y = place
        runs = font_runs(text)
        if len(runs) > 1:
            x, anchor = x - 'lmr'.index(anchor[0]) / 2 * self.length(text), f'l{anchor[1]}'
        for file, part in runs:
            font = _font(file, self.size)
            draw.text((x, y), part, fill=fill, font=font, anchor=anchor)
            x += font.getlength(part)


@cache
def _font(file: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(file, size)


@cache
def default_font() -> str:
    """Return the file of DejaVu Sans, which comes with matplotlib and has many scripts."""
    import matplotlib

    return str(Path(matplotlib.get_data_path(), 'fonts/ttf/DejaVuSans.ttf'))


def font_runs(text: str) -> list[tuple[str, str]]:
    """Return the parts of a text that are written in one font, each with the file of the font."""
    return [(file, ''.join(letters)) for file, letters in groupby(text, _font_of)]


def chart_fonts(texts: Iterable[str]) -> dict[str, Any]:
    """Return parameters of matplotlib with which a chart can show all letters of texts."""
    from matplotlib import font_manager

    files = dict.fromkeys([default_font(), *map(_font_of, ''.join(texts))])
    for file in files.keys() - {entry.fname for entry in font_manager.fontManager.ttflist}:
        font_manager.fontManager.addfont(file)  # it is newer than matplotlib's list
    return {'font.family': [font_manager.FontProperties(fname=f).get_name() for f in files]}


@cache
def _font_of(letter: str) -> str:
    """Return the file of a font that has a letter: DejaVu Sans, or the first one of this system."""
    if not letter.isprintable() or letter.isspace():
        return default_font()
    for file in (default_font(), *_system_fonts()):
        if ord(letter) in _letters_of(file):
            return file
    _warn()
    return default_font()


@cache
def _letters_of(file: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(file)
    except (OSError, RuntimeError):  # it is broken, or has no outlines
        return frozenset()
    has_boxes = NO_FONT in font.family_name.replace(' ', '')
    return frozenset(font.get_charmap() if font.scalable and not has_boxes else ())


@cache
def _warn() -> None:
    print_log(
        'no font of this system has some of the letters, which pictures show as squares: install '
        'one, such as Noto Sans CJK (on Debian: fonts-noto-cjk)',
        'current',
        logging.WARNING,
    )


@cache
def _system_fonts() -> tuple[str, ...]:
    """Return the files of all fonts, those of a regular style first."""
    from matplotlib import font_manager

    files = sorted(font_manager.findSystemFonts())
    return tuple(sorted(files, key=lambda file: 'regular' not in Path(file).name.lower()))
