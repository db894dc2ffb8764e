"""Texts in scripts that DejaVu Sans lacks are written in a font of this system."""

from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageDraw, ImageFont

from xcit_mm.base import fonts

LETTER = '\u1d84'  # of STIX, and not of DejaVu Sans
STIX = str(Path(matplotlib.get_data_path(), 'fonts/ttf/STIXGeneral.ttf'))
LAST_RESORT = str(Path(STIX).with_name('LastResortHE-Regular.ttf'))


@pytest.fixture
def system(monkeypatch):
    """The fonts of a system."""
    fonts._font_of.cache_clear()
    fonts._warn.cache_clear()
    warned = []
    monkeypatch.setattr(fonts, 'print_log', lambda text, *_: warned.append(text))
    files = [LAST_RESORT, STIX, __file__]
    monkeypatch.setattr(fonts, '_system_fonts', lambda: tuple(files))
    yield files, warned
    fonts._font_of.cache_clear()


def test_letters_are_drawn_in_a_font_that_has_them(system):
    assert not FT2Font(fonts.default_font()).get_char_index(ord(LETTER))
    assert fonts.font_runs(f'a {LETTER}{LETTER}b') == [
        (fonts.default_font(), 'a '),
        (STIX, LETTER * 2),
        (fonts.default_font(), 'b'),
    ]
    pictures = []
    for write in (
        lambda draw: fonts.Writer(20).write(draw, (5, 20), LETTER, 'black'),
        lambda draw: draw.text((5, 20), LETTER, 'black', ImageFont.truetype(STIX, 20), 'lm'),
    ):
        picture = Image.new('L', (40, 40), 255)
        write(ImageDraw.Draw(picture))
        pictures.append(np.array(picture))
    np.testing.assert_array_equal(*pictures)
    writer, picture = fonts.Writer(20), Image.new('L', (99, 40), 255)
    writer.write(ImageDraw.Draw(picture), (90, 20), f'a{LETTER}', 'black', 'rm')
    left, right = 90 - writer.length(f'a{LETTER}'), 90
    (columns,) = np.nonzero((np.array(picture) < 128).any(0))
    assert left - 1 <= columns[0] <= left + 3 and right - 4 <= columns[-1] <= right + 1
    family = fonts.chart_fonts([f'x{LETTER}'])['font.family']
    assert family == ['DejaVu Sans', 'STIXGeneral']


def test_letters_that_no_font_has_are_reported_once(system):
    files, warned = system
    del files[1]
    assert fonts.font_runs(f'a{LETTER}') == [(fonts.default_font(), f'a{LETTER}')]
    fonts.font_runs(f'b{LETTER}')
    assert len(warned) == 1 and 'no font of this system has' in warned[0]
