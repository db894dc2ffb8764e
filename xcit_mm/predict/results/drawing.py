"""Pictures of objects and regions over images; text that is wider than a picture is cut.

Images and pictures are RGB, (H, W, 3) uint8. A small image is enlarged by an integer factor.
"""

from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image, ImageDraw

from ...base.colors import Color
from ...base.fonts import Writer

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
    topmost: np.ndarray | None,
    colors: Sequence[Color],
    texts: Sequence[str],
) -> np.ndarray:
    """Draw boxes (n, 4) with texts, and masks as :func:`topmost_masks` returns them, if not None.

    An empty text is not drawn.
    """
    canvas, factor = _enlarged(image)
    line_width = _line_width(canvas)
    if topmost is not None:
        topmost = topmost.repeat(factor, axis=0).repeat(factor, axis=1)
        painted = np.array([BLACK, *colors], np.uint8)[topmost]
        _blend(canvas, painted, topmost > 0, MASK_OPACITY)
        _blend(canvas, painted, _edges(topmost, line_width) & (topmost > 0), 1)
    if boxes is None:
        return canvas
    picture = Image.fromarray(canvas)
    draw = ImageDraw.Draw(picture)
    corners = np.clip((boxes * factor).round(), 0, np.array(picture.size * 2) - 1).astype(int)
    corners[:, 2:] = np.maximum(corners[:, :2], corners[:, 2:])  # or Pillow raises
    corners = corners.tolist()
    for i in reversed(range(len(corners))):
        draw.rectangle(corners[i], outline=colors[i], width=line_width)
    _draw_texts(draw, corners, texts, colors, _writer(canvas))
    return np.array(picture)


def topmost_masks(masks: np.ndarray | None) -> np.ndarray | None:
    """Return the number, from 1, of the first of the masks (n, H, W) at each pixel, or 0.

    Blending the masks one by one would take seconds.
    """
    if masks is None:
        return None
    topmost = np.zeros(masks.shape[1:], np.uint16)
    for i in reversed(range(len(masks))):
        np.copyto(topmost, i + 1, where=masks[i])
    return topmost


def draw_regions(
    image: np.ndarray,
    labels: np.ndarray,
    palette: Sequence[Color],
    legend: Sequence[tuple[Color, str]],
    opacity: float,
    legend_rows: int | None,
    segments: np.ndarray | None,
) -> np.ndarray:
    """Color every pixel by its label (H, W), and write a legend below.

    A label outside the palette, such as the label of pixels without data, has no color. Regions are
    outlined in the full color of their class, or separated by white lines if they are ``segments``
    (H, W).
    """
    canvas, factor = _enlarged(image)
    labels = labels.repeat(factor, axis=0).repeat(factor, axis=1)
    is_colored = (labels >= 0) & (labels < len(palette))
    colors = np.array(palette, np.uint8)[np.where(is_colored, labels, 0)]
    _blend(canvas, colors, is_colored, opacity)
    if segments is None:
        is_edge = _edges(labels.astype(np.int16), 2 * _line_width(canvas))  # half on each side
        _blend(canvas, colors, is_edge & is_colored, 1)
    else:
        numbers = np.unique(segments, return_inverse=True)[1].reshape(segments.shape)
        numbers = numbers.astype(np.uint16).repeat(factor, axis=0).repeat(factor, axis=1)
        _blend(canvas, np.full_like(canvas, WHITE), _edges(numbers, 2), 1)
    return np.concatenate([canvas, _draw_legend(legend, canvas, legend_rows)])


def draw_heights(
    image: np.ndarray, values: np.ndarray, limits: tuple[float, float], opacity: float
) -> np.ndarray:
    """Color every pixel by its height (H, W), and draw the scale of colors below.

    ``limits`` are the heights of the first and the last color. A pixel with NaN has no color.
    """
    canvas, factor = _enlarged(image)
    low, high = limits
    shares = (values - low) / max(high - low, np.finfo(np.float32).tiny)
    is_colored = np.isfinite(shares)
    shades = (255 * np.where(is_colored, shares, 0).clip(0, 1)).astype(np.uint8)
    colors, is_colored = (
        x.repeat(factor, axis=0).repeat(factor, axis=1) for x in (_heat(shades), is_colored)
    )
    _blend(canvas, colors, is_colored, opacity)
    return np.concatenate([canvas, _draw_scale(canvas, limits)])


def _heat(shades: np.ndarray) -> np.ndarray:
    """Return the colors (H, W, 3) of shades (H, W) uint8, from dark blue to yellow."""
    return np.ascontiguousarray(cv2.applyColorMap(shades, cv2.COLORMAP_VIRIDIS)[..., ::-1])


def _draw_scale(canvas: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    """Draw a bar of all colors with the lowest, the middle and the highest height."""
    writer, width = _writer(canvas), canvas.shape[1]
    size = writer.size
    bar = np.linspace(0, 255, max(1, width - 2 * size)).astype(np.uint8)[None].repeat(size, axis=0)
    picture = Image.new('RGB', (width, round(3.6 * size)), WHITE)
    picture.paste(Image.fromarray(_heat(bar)), (size, size // 2))
    draw = ImageDraw.Draw(picture)
    low, high = limits
    marks = (low, size, 'l'), ((low + high) / 2, width // 2, 'm'), (high, width - size, 'r')
    for height, x, anchor in marks:
        text = 'no data' if np.isnan(height) else f'{height:.4g}'
        writer.write(draw, (x, 2.6 * size), text, BLACK, f'{anchor}m')
    return np.array(picture)


def _enlarged(image: np.ndarray) -> tuple[np.ndarray, int]:
    """Return a copy of an image, enlarged if it is small, and the factor."""
    short, long = sorted(image.shape[:2])
    factor = max(1, min(-(-MIN_SIDE // short), MAX_SIDE // long))
    size = image.shape[1] * factor, image.shape[0] * factor
    return cv2.resize(image, size, interpolation=cv2.INTER_CUBIC), factor


def _mean_side(canvas: np.ndarray) -> float:
    return np.prod(canvas.shape[:2]) ** 0.5


def _line_width(canvas: np.ndarray) -> int:
    return max(2, round(LINE_WIDTH * _mean_side(canvas)))


def _edges(numbers: np.ndarray, width: int) -> np.ndarray:
    """Return where lines of a width in pixels lie between different numbers (H, W)."""
    kernel = np.ones((width + 1, width + 1), np.uint8)
    return cv2.morphologyEx(numbers, cv2.MORPH_GRADIENT, kernel) > 0


def _blend(canvas: np.ndarray, colors: np.ndarray, where: np.ndarray, opacity: float) -> None:
    """Blend colors (H, W, 3) into a canvas, in place, where a mask (H, W) is true."""
    blended = cv2.addWeighted(canvas, 1 - opacity, colors, opacity, 0)
    np.copyto(canvas, blended, where=where[..., None])


def _draw_texts(
    draw: ImageDraw.ImageDraw,
    boxes: list[list[int]],
    texts: Sequence[str],
    colors: Sequence[Color],
    writer: Writer,
) -> None:
    """Write each text above its box, below it or in it: the first place that is free."""
    picture_width, picture_height = draw.im.size
    height = round(1.3 * writer.size)
    labels: list[tuple[int, int, int]] = []  # left, right, top
    shown = [i for i, text in enumerate(texts) if text]
    for (left, top, _, bottom), text in ((boxes[i], texts[i]) for i in shown):
        width = round(writer.length(text) + 0.6 * writer.size)
        left = max(0, min(left, picture_width - width))
        taken = [y for start, end, y in labels if start < left + width and left < end]
        tops = [max(0, min(y, picture_height - height)) for y in (top - height, bottom, top)]
        free = (y for y in tops if all(abs(y - taken_y) >= height for taken_y in taken))
        labels.append((left, left + width, next(free, tops[0])))
    for i, (left, right, top) in reversed([*zip(shown, labels, strict=True)]):
        text, color = texts[i], colors[i]
        draw.rectangle((left, top, right - 1, top + height - 1), fill=color)
        text_color = BLACK if np.dot(LUMINANCE, color) > 140 else WHITE
        middle = (left + right) // 2, top + height // 2
        writer.write(draw, middle, text, text_color, 'mm')


def _draw_legend(
    entries: Sequence[tuple[Color, str]], canvas: np.ndarray, num_rows: int | None
) -> np.ndarray:
    """Draw patches of color with their texts, in rows as wide as the canvas."""
    writer, width = _writer(canvas), canvas.shape[1]
    size, row_height = writer.size, 1.8 * writer.size
    positions, x, row = [], size, 0
    for _, text in entries:
        entry_width = writer.length(text) + 2.4 * size
        if x > size and x + entry_width > width:
            x, row = size, row + 1
        positions.append((x, (row + 0.9) * row_height))
        x += entry_width
    height = round((row + 1 if num_rows is None else num_rows) * row_height + size)
    picture = Image.new('RGB', (width, height), WHITE)
    draw = ImageDraw.Draw(picture)
    for (x, y), (color, text) in zip(positions, entries, strict=True):
        patch = x, y - size / 2, x + size - 1, y + size / 2 - 1
        draw.rectangle(patch, fill=color, outline=BLACK)
        writer.write(draw, (x + 1.4 * size, y), text, BLACK)
    return np.array(picture)


def _writer(canvas: np.ndarray) -> Writer:
    return Writer(max(MIN_TEXT_SIZE, round(TEXT_SIZE * _mean_side(canvas))))
