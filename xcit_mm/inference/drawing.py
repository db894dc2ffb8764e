"""Predictions over images, legible at any size."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .classes import Colour

MIN_SIDE = 320  # pixels; labels hide the objects of a smaller picture
MAX_SIDE = 4096  # of a picture that was enlarged
MASK_OPACITY = 0.5
TEXT_SIZE = 0.02  # of the mean side of the picture
MIN_TEXT_SIZE = 12  # pixels
LINE_WIDTH = 0.0025  # of the mean side of the picture
WHITE, BLACK = (255, 255, 255), (0, 0, 0)
Box = tuple[int, int, int, int]  # left, top, right, bottom

LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601


def draw_objects(
    image: np.ndarray,
    boxes: np.ndarray | None,
    colours: Sequence[Colour],
    texts: Sequence[str],
    masks: np.ndarray | None,
) -> np.ndarray:
    """Draw objects, the first of them on top.

    Args:
        image: RGB, (H, W, 3) uint8.
        boxes: (n, 4), left, top, right and bottom; None: neither boxes nor texts.
        colours: One for each object.
        texts: One for each object.
        masks: (n, H, W) bool, or None.

    Returns:
        The picture, RGB, enlarged if it is small.
    """
    factor = _factor(image)
    canvas = _enlarge(image, factor, cv2.INTER_CUBIC)
    if masks is not None and len(masks):
        _paint_masks(canvas, masks, colours, factor)
    if boxes is None:
        return canvas
    picture = Image.fromarray(canvas)
    draw = ImageDraw.Draw(picture)
    width = _line_width(canvas)
    corners = [_inside(box * factor, picture.size) for box in boxes]
    for box, colour in reversed(list(zip(corners, colours, strict=True))):
        draw.rectangle(box, outline=colour, width=width)
    _write_texts(draw, corners, colours, texts, picture.size)
    return np.array(picture)


def draw_regions(
    image: np.ndarray,
    labels: np.ndarray,
    palette: Sequence[Colour],
    legend: Sequence[tuple[Colour, str]],
    opacity: float,
    legend_rows: int | None,
) -> np.ndarray:
    """Colour every pixel by its class, and write a legend below.

    Args:
        image: RGB, (H, W, 3) uint8.
        labels: (H, W), indices into ``palette``.
        palette: Colours.
        legend: Colours and what they mean.
        opacity: Of the colours, 0..1.
        legend_rows: None: as many as it takes.

    Returns:
        The picture, RGB, enlarged if it is small.
    """
    factor = _factor(image)
    canvas = _enlarge(image, factor, cv2.INTER_CUBIC)
    colours = np.array(palette, np.uint8)[_enlarge(labels, factor, cv2.INTER_NEAREST)]
    cv2.addWeighted(canvas, 1 - opacity, colours, opacity, 0, dst=canvas)
    return np.concatenate([canvas, _legend(legend, canvas, legend_rows)])


def _factor(image: np.ndarray) -> int:
    """How many times a small picture is enlarged."""
    short, long = sorted(image.shape[:2])
    return max(1, min(-(-MIN_SIDE // short), MAX_SIDE // long))


def _enlarge(image: np.ndarray, factor: int, interpolation: int) -> np.ndarray:
    """A copy, enlarged."""
    if factor == 1:
        return image.copy()
    return cv2.resize(image, None, fx=factor, fy=factor, interpolation=interpolation)


def _mean_side(canvas: np.ndarray) -> float:
    height, width = canvas.shape[:2]
    return (height * width) ** 0.5


def _line_width(canvas: np.ndarray) -> int:
    return max(2, round(LINE_WIDTH * _mean_side(canvas)))


def _text_size(size: tuple[int, int]) -> int:
    width, height = size
    return max(MIN_TEXT_SIZE, round(TEXT_SIZE * (height * width) ** 0.5))


def _paint_masks(
    canvas: np.ndarray, masks: np.ndarray, colours: Sequence[Colour], factor: int
) -> None:
    """Blend the colours in where masks are, with opaque edges, in place.

    One map of which mask is on top at each pixel: blending each by itself takes seconds on a
    large image.
    """
    top = np.zeros(masks.shape[1:], np.uint16)
    for i in reversed(range(len(masks))):
        np.copyto(top, i + 1, where=masks[i])
    top = _enlarge(top, factor, cv2.INTER_NEAREST)
    table = np.array([BLACK, *colours], np.uint8)
    painted = table[top]
    size = _line_width(canvas) + 1
    edges = cv2.morphologyEx(top, cv2.MORPH_GRADIENT, np.ones((size, size), np.uint8)) > 0
    blended = cv2.addWeighted(canvas, 1 - MASK_OPACITY, painted, MASK_OPACITY, 0)
    covered = top > 0
    np.copyto(canvas, blended, where=covered[..., None])
    np.copyto(canvas, painted, where=(edges & covered)[..., None])


def _inside(box: np.ndarray, size: tuple[int, int]) -> Box:
    """The corners within the picture, in whole pixels, the second not before the first."""
    width, height = size
    left, right = np.clip(box[[0, 2]].round().astype(int), 0, width - 1).tolist()
    top, bottom = np.clip(box[[1, 3]].round().astype(int), 0, height - 1).tolist()
    return left, top, max(left, right), max(top, bottom)


def _write_texts(
    draw: ImageDraw.ImageDraw,
    boxes: Sequence[Box],
    colours: Sequence[Colour],
    texts: Sequence[str],
    size: tuple[int, int],
) -> None:
    """Write each text at its box where there is room, those of the first boxes before others."""
    taken: list[Box] = []
    placed = []
    for box, text in zip(boxes, texts, strict=True):
        font, width, height = _fitting(text, _text_size(size), size[0])
        place = _place(box, width, height, size, taken)
        taken.append(place)
        placed.append((place, font))
    for (place, font), colour, text in reversed(list(zip(placed, colours, texts, strict=True))):
        draw.rectangle(place, fill=colour)
        middle = (place[0] + place[2]) // 2, (place[1] + place[3]) // 2
        draw.text(middle, text, fill=_readable_on(colour), font=font, anchor='mm')


def _place(
    box: Box,
    width: int,
    height: int,
    size: tuple[int, int],
    taken: Sequence[Box],
) -> Box:
    """Above the box, below it or in its corner: the first place that is free."""
    left = max(0, min(box[0], size[0] - width))
    tops = (box[1] - height, box[3], box[1], box[3] - height)
    tops = [max(0, min(top, size[1] - height)) for top in tops]
    places = [(left, top, left + width - 1, top + height - 1) for top in tops]
    return next((p for p in places if not any(_overlap(p, other) for other in taken)), places[0])


def _overlap(one: Box, other: Box) -> bool:
    across = one[0] < other[2] and other[0] < one[2]
    return across and one[1] < other[3] and other[1] < one[3]


def _legend(
    entries: Sequence[tuple[Colour, str]], canvas: np.ndarray, rows: int | None
) -> np.ndarray:
    """Patches of colour with their texts, in rows as wide as the picture."""
    height, width = canvas.shape[:2]
    text_size = _text_size((width, height))
    row = round(text_size * 1.8)
    patch = gap = text_size
    places, x, y = [], gap, gap // 2
    for colour, text in entries:
        font, text_width, _ = _fitting(text, text_size, width - 2 * gap - patch)
        if x > gap and x + patch + text_width + gap > width:
            x, y = gap, y + row
        places.append((x, y, colour, text, font))
        x += patch + text_width + gap
    bottom = y + row if rows is None else gap // 2 + rows * row
    picture = Image.new('RGB', (width, bottom + gap // 2), WHITE)
    draw = ImageDraw.Draw(picture)
    for x, y, colour, text, font in places:
        top = y + (row - patch) / 2
        draw.rectangle((x, top, x + patch - 1, top + patch - 1), fill=colour, outline=BLACK)
        draw.text((x + 1.4 * patch, y + row / 2), text, fill=BLACK, font=font, anchor='lm')
    return np.array(picture)


def _fitting(text: str, text_size: int, width: int) -> tuple[ImageFont.FreeTypeFont, int, int]:
    """The font in which a text is no wider than this, with the width and height it takes."""
    while True:
        font = _font(text_size)
        needed = round(font.getlength(text) + 0.6 * text_size)
        if needed <= width or text_size == 1:
            return font, needed, round(1.3 * text_size)
        text_size = max(1, min(text_size - 1, text_size * width // needed))


@lru_cache(maxsize=64)
def _font(text_size: int) -> ImageFont.FreeTypeFont:
    import matplotlib  # which brings a font of many scripts

    path = Path(matplotlib.get_data_path(), 'fonts/ttf/DejaVuSans.ttf')
    return ImageFont.truetype(str(path), text_size)


def _readable_on(colour: Colour) -> Colour:
    luminance = sum(part * value for part, value in zip(LUMINANCE, colour, strict=True))
    return BLACK if luminance > 140 else WHITE
