"""The fonts of pictures: DejaVu Sans, and fonts of this system for letters that it lacks."""

import logging
from collections.abc import Iterable
from functools import lru_cache
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


@lru_cache
def _font(file: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(file, size)


@lru_cache(maxsize=1)
def default_font() -> str:
    """Return the file of DejaVu Sans, which comes with matplotlib and has many scripts."""
    import matplotlib

    return str(Path(matplotlib.get_data_path(), 'fonts/ttf/DejaVuSans.ttf'))


def font_runs(text: str) -> list[tuple[str, str]]:
    """Return the parts of a text that are written in one font, each with the file of the font."""
    fonts = _fonts_of(frozenset(text))
    runs: list[tuple[str, str]] = []
    for letter in text:
        font = fonts.get(letter, default_font())
        if runs and runs[-1][0] == font:
            font, letter = font, runs.pop()[1] + letter
        runs.append((font, letter))
    return runs


def chart_fonts(texts: Iterable[str]) -> dict[str, Any]:
    """Return parameters of matplotlib with which a chart can show all letters of texts."""
    from matplotlib import font_manager

    files = dict.fromkeys([default_font(), *_fonts_of(frozenset(''.join(texts))).values()])
    known = {entry.fname for entry in font_manager.fontManager.ttflist}
    for file in files.keys() - known:  # matplotlib's list may be older than a font
        font_manager.fontManager.addfont(file)
    return {'font.family': [font_manager.FontProperties(fname=f).get_name() for f in files]}


@lru_cache
def _fonts_of(letters: frozenset[str]) -> dict[str, str]:
    """Return the files of fonts for letters that DejaVu Sans lacks.

    A warning names the letters that no font has.
    """
    lacking = _lacking(default_font(), letters)
    fonts: dict[str, str] = {}
    candidates = _system_fonts() if lacking else ()
    while lacking:
        left, font = min(
            ((_lacking(file, lacking), file) for file in candidates),
            key=lambda found: len(found[0]),
            default=(lacking, ''),
        )
        if left == lacking:
            _warn(''.join(sorted(lacking)))
            break
        fonts |= dict.fromkeys(lacking - left, font)
        lacking = left
    return fonts


@lru_cache
def _warn(letters: str) -> None:
    print_log(
        f'no font of this system has the letters {letters}, which pictures show as squares: '
        'install one, such as Noto Sans CJK (on Debian: fonts-noto-cjk)',
        'current',
        logging.WARNING,
    )


def _lacking(file: str, letters: frozenset[str]) -> frozenset[str]:
    """Return the letters that a font file does not have."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(file)
    except (OSError, RuntimeError):  # it is broken, or has no outlines
        return letters
    if not font.scalable or NO_FONT in font.family_name.replace(' ', ''):
        return letters
    printed = (letter for letter in letters if letter.isprintable() and not letter.isspace())
    return frozenset(letter for letter in printed if not font.get_char_index(ord(letter)))


@lru_cache(maxsize=1)
def _system_fonts() -> tuple[str, ...]:
    """Return the files of all fonts, those of a regular style first."""
    from matplotlib import font_manager

    files = sorted(font_manager.findSystemFonts())
    return tuple(sorted(files, key=lambda file: 'regular' not in Path(file).name.lower()))
