"""A single object of an image."""

from typing import Any, NamedTuple

import numpy as np


class DetectedObject(NamedTuple):
    """An object of :class:`~xcit_mm.predict.results.results.Detections`.

    Attributes:
        box: (4,), left, top, right and bottom in pixels of the image.
        score: 0..1.
        label: An index into the classes of the model.
        name: The name of the class.
        mask: (H, W) bool; None for a model without masks. For a large image, a window of the image
            and the mask in it.
    """

    box: np.ndarray
    score: float
    label: int
    name: str
    mask: Any

    def __repr__(self) -> str:
        corners = ', '.join(f'{value:.1f}' for value in self.box)
        return f'{type(self).__name__}({self.name} {self.score:.2f} at {corners})'
