"""Reading label images: numbers, or colors."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...base.errors import UserError
from ...base.files import read_regular
from ..datasets.labels import IGNORED as IGNORED_NUMBER
from ..datasets.labels import class_numbers
from ..transforms.decode import JPEG, MAX_BYTES, Size, decode, label_size
from ..transforms.label_images import decode_labels
from .base import MAX_PRINTED, LabelError
from .color_table import in_words

MAX_LISTED = 8  # values in a sentence


class ColorsError(LabelError):
    """A label image has colors instead of numbers.

    Attributes:
        counts: The number of pixels of the most frequent colors.
    """

    def __init__(self, path: Path, counts: Mapping[int, int]) -> None:
        super().__init__(
            f'{path}: its classes are colors ({in_short(map(in_words, counts))}): name them in a '
            'file with R G B NAME in each line, and pass --colors FILE'
        )
        self.counts = dict(Counter(counts).most_common(MAX_PRINTED + 1))


def stored_size(path: Path) -> Size:
    """Return the width and height of a label image, or raise a LabelError."""
    return label_size(read_regular(path, MAX_BYTES), path)


class LabelImage(NamedTuple):
    """A label image as it is decoded.

    Attributes:
        pixels: (H, W), or (H, W, channels).
        are_colors: Whether the pixels are 0xRRGGBB.
        is_jpeg: Whether it is a JPEG file.
    """

    pixels: np.ndarray
    are_colors: bool
    is_jpeg: bool


def read_label(path: Path, as_colors: bool) -> LabelImage:
    """Read a label image.

    Args:
        path: The file.
        as_colors: Whether to read its colors, also of a palette, (H, W) 0xRRGGBB. Otherwise, the
            numbers that are stored are read.
    """
    data = read_regular(path, MAX_BYTES)
    is_jpeg = data.startswith(JPEG)
    if not as_colors:
        return LabelImage(decode_labels(data, str(path)), as_colors, is_jpeg)
    colors = decode(data, label_size(data, path), path)[..., ::-1]
    return LabelImage(_packed(colors), as_colors, is_jpeg)


def values_of(label: LabelImage, path: Path) -> np.ndarray:
    """Return the values of a label image, (H, W).

    Raises:
        UserError: If it has colors instead of numbers, or the compression of JPEG has changed them.
    """
    pixels = label.pixels
    if label.are_colors:
        return pixels
    if pixels.ndim == 3:
        pixels = pixels[..., :-1] if pixels.shape[2] in (2, 4) else pixels  # without the opacity
        if (pixels != pixels[..., :1]).any():
            raise _other_bands(pixels, path)
        pixels = pixels[..., 0]
    values = class_numbers(str(path), pixels)
    if label.is_jpeg and values.max() <= IGNORED_NUMBER and len(counted(values)) > 2:
        raise UserError(
            f'{path}: it is a JPEG file, whose compression changes the numbers of the classes: '
            'save the labels as PNG files from their source, or a mask of two classes after '
            'setting values below 128 to 0 and the others to 255'
        )
    return values


def _other_bands(pixels: np.ndarray, path: Path) -> UserError:
    if pixels.dtype == np.uint8 and pixels.shape[2] == 3:
        return ColorsError(path, counted(_packed(pixels)))
    return UserError(
        f'{path}: it has {pixels.shape[2]} bands of {pixels.dtype}: write the number of the class '
        'of each pixel as one band'
    )


def _packed(colors: np.ndarray) -> np.ndarray:
    """Return RGB colors (H, W, 3) as 0xRRGGBB."""
    red, green, blue = np.moveaxis(colors.astype(np.int32), -1, 0)
    return red << 16 | green << 8 | blue


def counted(values: np.ndarray) -> dict[int, int]:
    """Return the number of pixels of each value."""
    if values.max() < 2**16:
        counts = np.bincount(values.ravel())
        return {int(value): int(counts[value]) for value in np.flatnonzero(counts)}
    return {int(v): int(n) for v, n in zip(*np.unique(values, return_counts=True), strict=True)}


def in_short(texts: Iterable[str], separator: str = ', ') -> str:
    """Return the first texts of a list for a sentence."""
    texts = [*texts]
    return separator.join([*texts[:MAX_LISTED], *(['...'] if len(texts) > MAX_LISTED else [])])
