"""The class of each pixel of an image."""

from dataclasses import dataclass

import numpy as np

from .classes import Colour
from .drawing import draw_regions


@dataclass(frozen=True)
class Segmentation:
    """The classes of an image of H x W pixels.

    Attributes:
        image: RGB, (H, W, 3) uint8.
        labels: (H, W), indices into ``classes``; uint8, int16 where there are more than 256.
        classes: Their names.
        palette: A colour for each class.
    """

    image: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    palette: tuple[Colour, ...]

    def shares(self) -> dict[int, float]:
        """The part of the image, 0..1, of each class that occurs, the largest first."""
        counts = np.bincount(self.labels.ravel(), minlength=len(self.classes))
        order = np.argsort(-counts, kind='stable')
        return {int(i): counts[i] / self.labels.size for i in order if counts[i]}

    def draw(self, opacity: float = 0.5, legend_rows: int | None = None) -> np.ndarray:
        """Lay the colours of the classes over the image, with a legend of those that occur below.

        Args:
            opacity: Of the colours, 0..1.
            legend_rows: Of the legend, for pictures of one size; the smallest classes are left
                out of a longer one. None: as many as it takes.

        Returns:
            RGB, uint8, (H + legend, W, 3), a small image enlarged by a whole number.
        """
        legend = [
            (self.palette[i], f'{self.classes[i]} {share:.1%}')
            for i, share in self.shares().items()
        ]
        return draw_regions(self.image, self.labels, self.palette, legend, opacity, legend_rows)
