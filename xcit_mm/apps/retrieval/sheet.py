"""A sheet of pictures with the results of each query."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from ...base.errors import UserError, printable
from ...base.files import write_whole
from ...base.fonts import Writer

SIDE, GAP, TEXT = 160, 8, 16  # pixels: picture side, space between pictures, text line
MAX_ROWS = 100
MAX_LETTERS, TEXT_SIZE = 25, 11

Found = tuple[str, Sequence[tuple[str, float]]]  # a query, and the names and scores of its results


def draw_sheet(path: Path, results: Sequence[Found], picture: Callable[[str], np.ndarray]) -> None:
    """Draw the first ``MAX_ROWS`` queries on the left, and their results on the right.

    Args:
        path: A .png file.
        results: The queries and their results.
        picture: Reads an image as RGB (H, W, 3) uint8, or raises a UserError.
    """
    rows = results[:MAX_ROWS]
    columns = 1 + max(len(images) for _, images in rows)
    cell = SIDE + GAP, SIDE + TEXT + GAP
    sheet = Image.new('RGB', (columns * cell[0] + 2 * GAP, len(rows) * cell[1] + GAP), 'white')
    draw = ImageDraw.Draw(sheet)
    for row, (query, images) in enumerate(rows):
        labels = [
            (query, Path(query).name),
            *((name, f'{s:.3f}  {Path(name).name}') for name, s in images),
        ]
        for column, (name, label) in enumerate(labels):
            x = GAP + column * cell[0] + (GAP if column else 0)
            y = GAP + row * cell[1]
            _paste(sheet, picture, name, (x, y))
            text = printable(label)
            text = text if len(text) <= MAX_LETTERS else f'{text[: MAX_LETTERS - 3]}...'
            Writer(TEXT_SIZE).write(draw, (x, y + SIDE + TEXT / 2), text, 'black')
        line = GAP + cell[0] - 1
        draw.line((line, GAP + row * cell[1], line, GAP + row * cell[1] + SIDE), 'gray', 2)
    with write_whole(path) as file:
        sheet.save(file, 'PNG')


def _paste(
    sheet: Image.Image, picture: Callable[[str], np.ndarray], name: str, corner: tuple[int, int]
) -> None:
    try:
        image = Image.fromarray(picture(name))
    except UserError:  # the files of an index may have been moved
        image = Image.new('RGB', (SIDE, SIDE), 'lightgray')
    image.thumbnail((SIDE, SIDE))
    left, top = ((SIDE - n) // 2 for n in image.size)
    sheet.paste(image, (corner[0] + left, corner[1] + top))
