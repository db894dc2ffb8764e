"""Windows of images."""

from collections.abc import Sequence

import numpy as np

from ...base.errors import UserError
from ...base.geometry import Window, shifted
from .image_source import ImageSource
from .image_views import ImageView


class CroppedImage(ImageView):
    """A window of another image.

    Args:
        source: The other image.
        window: The window.
        is_complete: Whether all pixels in the window are known to have data.
    """

    def __init__(self, source: ImageSource, window: Window, is_complete: bool = False) -> None:
        super().__init__(source, tuple(window), shape=(*window.size, source.shape[2]))
        self.window = window
        self.has_gaps = source.has_gaps and not is_complete
        transform = source.georeference.get('transform')
        if transform is not None:
            corner = window.columns.start, window.rows.start
            moved = transform * transform.translation(*corner)
            self.georeference = {**source.georeference, 'transform': moved}

    def _inside(self, window: Window) -> Window:
        starts = (span.start for span in self.window)
        return Window(*(shifted(s, start) for s, start in zip(window, starts, strict=True)))

    def _valid(self, window: Window) -> np.ndarray | None:
        return self.source.valid(self._inside(window))

    def valid_box(self) -> Window:
        box = self.source.valid_box().within(self.window)
        return box.clipped(self.shape[:2])

    def _read(self, window: Window) -> np.ndarray:
        return self.source.read(self._inside(window))


def window_of(corners: Sequence[int], size: tuple[int, int]) -> Window:
    """Return the window of an image (H, W) between left, top, right and bottom, in pixels.

    Raises:
        UserError: If the window is empty or extends beyond the image.
    """
    left, top, right, bottom = corners
    height, width = size
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise UserError(
            f'the region {left},{top},{right},{bottom} is not a window of the image of '
            f'{width}x{height} pixels: name left, top, right and bottom in pixels'
        )
    return Window(slice(top, bottom), slice(left, right))
