"""The symmetries of an image: flips and quarter turns, of arrays, windows, points and boxes."""

from typing import NamedTuple

import numpy as np

from ...base.geometry import Span, Window, whole
from .image_source import ImageSource
from .image_views import ImageView
from .pixel_sizes import PixelSize, to_full_size


class Symmetry(NamedTuple):
    """One of the eight ways to flip and turn an image. The transposition comes first.

    Sizes are (H, W) of the original image.

    Attributes:
        is_transposed: Whether rows become columns. With one flip, this is a quarter turn.
        flips_rows: Whether the first row becomes the last one, as in a vertical flip.
        flips_columns: Whether the first column becomes the last one, as in a horizontal flip.
    """

    is_transposed: bool = False
    flips_rows: bool = False
    flips_columns: bool = False

    def size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return (H, W) of the changed image."""
        return size[::-1] if self.is_transposed else tuple(size)

    def array(self, array: np.ndarray) -> np.ndarray:
        """Return a changed array (H, W) or (H, W, C), as a view of the original."""
        if self.is_transposed:
            array = array.swapaxes(0, 1)
        return array[:: -1 if self.flips_rows else 1, :: -1 if self.flips_columns else 1]

    def origin(self, window: Window, size: tuple[int, int]) -> Window:
        """Return the window of the original image that a window of the changed image shows."""
        height, width = self.size(size)
        rows = _reversed(window.rows, height) if self.flips_rows else window.rows
        columns = _reversed(window.columns, width) if self.flips_columns else window.columns
        return Window(columns, rows) if self.is_transposed else Window(rows, columns)

    def points(self, points: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Map points (n, 2), x and y, from the original image to the changed image."""
        height, width = self.size(size)
        x, y = points.T[::-1] if self.is_transposed else points.T
        return np.stack(
            [width - x if self.flips_columns else x, height - y if self.flips_rows else y], axis=1
        )

    def boxes(self, boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Map boxes (n, 4), left, top, right and bottom, to the changed image."""
        corners = self.points(boxes.reshape(-1, 2), size).reshape(-1, 2, 2)
        return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


class TurnedImage(ImageView):
    """An image that is flipped and turned as a whole, window by window.

    After a quarter turn, a row of tiles reads columns of the file. A file in blocks is still
    decoded about once, but a file in strips is decoded as a whole for each row of tiles: 20 times
    for 20,000 columns and tiles of 1000 pixels. ``gdal_translate -co TILED=YES`` writes blocks.
    """

    def __init__(self, source: ImageSource, symmetry: Symmetry) -> None:
        size = symmetry.size(source.shape[:2])
        super().__init__(source, symmetry, (*size, source.shape[2]))
        self.full_size = symmetry.size(source.full_size)
        self.georeference = to_full_size(self.shape, self.full_size) if source.level else {}
        self.levels = tuple(map(symmetry.size, source.levels))
        if source.pixel_size is not None:
            height, width, unit = source.pixel_size
            self.pixel_size = PixelSize(*symmetry.size((height, width)), unit)
        if symmetry.is_transposed:
            self.max_rows = None  # the more rows a window has, the fewer times a strip is decoded

    def _read(self, window: Window) -> np.ndarray:
        original = self.source.read(self.change.origin(window, self.source.shape[:2]))
        return np.ascontiguousarray(self.change.array(original))

    def valid_box(self) -> Window:
        return whole(self.shape[:2])

    def _valid(self, window: Window) -> np.ndarray | None:
        valid = self.source.valid(self.change.origin(window, self.source.shape[:2]))
        return None if valid is None else np.ascontiguousarray(self.change.array(valid))


def _reversed(span: Span, size: int) -> Span:
    return slice(size - span.stop, size - span.start)
