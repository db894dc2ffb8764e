"""Objects and regions drawn over images, legible at any size.

Images and pictures are RGB, (H, W, 3) uint8. A small image is enlarged by an integer factor.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]  # red, green, blue, 0..255
Box = tuple[int, int, int, int]  # left, top, right, bottom

MIN_SIDE = 320  # pixels; labels hide the objects of a smaller picture
MAX_SIDE = 4096  # pixels of a picture that was enlarged
MASK_OPACITY = 0.5
TEXT_SIZE = 0.02  # relative to the mean side of the picture
MIN_TEXT_SIZE = 12  # pixels
LINE_WIDTH = 0.0025  # relative to the mean side of the picture
WHITE, BLACK = (255, 255, 255), (0, 0, 0)
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601


def draw_objects(
    image: np.ndarray,
    boxes: np.ndarray | None,
    masks: np.ndarray | None,
    colours: Sequence[Colour],
    texts: Sequence[str],
) -> np.ndarray:
    """Draw boxes (n, 4) with texts, if they are not None, and masks (n, H, W), the first on top."""
    factor = _scale(image)
    canvas = _enlarged(image, factor)
    if masks is not None and len(masks):
        _paint_masks(canvas, masks, colours, factor)
    if boxes is None:
        return canvas
    picture = Image.fromarray(canvas)
    draw = ImageDraw.Draw(picture)
    last_pixel = np.array(picture.size * 2) - 1
    corners = np.clip((boxes * factor).round(), 0, last_pixel).astype(int)
    corners[:, 2:] = np.maximum(corners[:, :2], corners[:, 2:])  # or Pillow raises
    corners = corners.tolist()
    labels = _place_texts(corners, texts, picture.size)
    for i in reversed(range(len(corners))):
        draw.rectangle(corners[i], outline=colours[i], width=_line_width(canvas))
    for i in reversed(range(len(corners))):
        (left, top, right, bottom), font = labels[i]
        draw.rectangle((left, top, right, bottom), fill=colours[i])
        text_colour = BLACK if np.dot(LUMINANCE, colours[i]) > 140 else WHITE
        middle = (left + right) // 2, (top + bottom) // 2
        draw.text(middle, texts[i], fill=text_colour, font=font, anchor='mm')
    return np.array(picture)


def draw_regions(
    image: np.ndarray,
    labels: np.ndarray,
    palette: Sequence[Colour],
    legend: Sequence[tuple[Colour, str]],
    opacity: float,
    legend_rows: int | None,
) -> np.ndarray:
    """Colour every pixel by its label (H, W), and write a legend below.

    A label beyond the palette, such as the 255 of ignored ground truth, has no colour.
    """
    factor = _scale(image)
    canvas = _enlarged(image, factor)
    labels = _repeated(labels, factor)
    is_coloured = labels < len(palette)
    colours = np.array(palette, np.uint8)[np.where(is_coloured, labels, 0)]
    blended = cv2.addWeighted(canvas, 1 - opacity, colours, opacity, 0)
    np.copyto(canvas, blended, where=is_coloured[..., None])
    return np.concatenate([canvas, _draw_legend(legend, canvas, legend_rows)])


def _scale(image: np.ndarray) -> int:
    short, long = sorted(image.shape[:2])
    return max(1, min(-(-MIN_SIDE // short), MAX_SIDE // long))


def _enlarged(image: np.ndarray, factor: int) -> np.ndarray:
    if factor == 1:
        return image.copy()
    return cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC)


def _repeated(labels: np.ndarray, factor: int) -> np.ndarray:
    return labels if factor == 1 else labels.repeat(factor, axis=0).repeat(factor, axis=1)


def _line_width(canvas: np.ndarray) -> int:
    return max(2, round(LINE_WIDTH * np.prod(canvas.shape[:2]) ** 0.5))


def _text_size(width: int, height: int) -> int:
    return max(MIN_TEXT_SIZE, round(TEXT_SIZE * (width * height) ** 0.5))


def _paint_masks(
    canvas: np.ndarray, masks: np.ndarray, colours: Sequence[Colour], factor: int
) -> None:
    """Paint masks with opaque edges, in place.

    One map says which mask is on top at each pixel: to blend the masks one by one takes seconds.
    """
    topmost = np.zeros(masks.shape[1:], np.uint16)
    for i in reversed(range(len(masks))):
        np.copyto(topmost, i + 1, where=masks[i])
    topmost = _repeated(topmost, factor)
    painted = np.array([BLACK, *colours], np.uint8)[topmost]
    blended = cv2.addWeighted(canvas, 1 - MASK_OPACITY, painted, MASK_OPACITY, 0)
    kernel = np.ones((_line_width(canvas) + 1,) * 2, np.uint8)
    is_edge = cv2.morphologyEx(topmost, cv2.MORPH_GRADIENT, kernel) > 0
    is_covered = topmost > 0
    np.copyto(canvas, blended, where=is_covered[..., None])
    np.copyto(canvas, painted, where=(is_edge & is_covered)[..., None])


def _place_texts(
    boxes: Sequence[Box], texts: Sequence[str], size: tuple[int, int]
) -> list[tuple[Box, ImageFont.FreeTypeFont]]:
    """Place each text above its box, below it or in a corner: the first place that is free."""
    labels: list[tuple[Box, ImageFont.FreeTypeFont]] = []
    for (left, top, _, bottom), text in zip(boxes, texts, strict=True):
        font, width, height = _fit(text, _text_size(*size), size[0])
        x = max(0, min(left, size[0] - width))
        places = []
        for y in (top - height, bottom, top, bottom - height):
            y = max(0, min(y, size[1] - height))
            places.append((x, y, x + width - 1, y + height - 1))
        free = (p for p in places if not any(_overlap(p, taken) for taken, _ in labels))
        labels.append((next(free, places[0]), font))
    return labels


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _draw_legend(
    entries: Sequence[tuple[Colour, str]], canvas: np.ndarray, rows: int | None
) -> np.ndarray:
    """Draw patches of colour with their texts, in rows as wide as the canvas."""
    height, width = canvas.shape[:2]
    patch = gap = text_size = _text_size(width, height)
    row = round(text_size * 1.8)
    places, x, y = [], gap, gap // 2
    for colour, text in entries:
        font, text_width, _ = _fit(text, text_size, width - 2 * gap - patch)
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


def _fit(text: str, size: int, max_width: int) -> tuple[ImageFont.FreeTypeFont, int, int]:
    """Return a font in which a text fits, and the width and height that the text takes."""
    widest = _font(size).getlength(text) + 0.6 * size
    if widest > max_width:
        size = max(1, int(size * max_width / widest))
    return _font(size), round(_font(size).getlength(text) + 0.6 * size), round(1.3 * size)


@lru_cache(maxsize=64)
def _font(size: int) -> ImageFont.FreeTypeFont:
    import matplotlib

    path = Path(matplotlib.get_data_path(), 'fonts/ttf/DejaVuSans.ttf')  # has many scripts
    return ImageFont.truetype(str(path), size)
