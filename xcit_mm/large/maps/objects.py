"""The objects of an image of any size, whose masks are windows of the image."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from ...base.geometry import Window


@dataclass(frozen=True)
class Objects:
    """The n objects of an image.

    Attributes:
        boxes: (n, 4); left, top, right and bottom in pixels.
        scores: (n,).
        labels: (n,).
        masks: For each object, the window of its mask and the mask (h, w) in that window; None
            for a model without masks.
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: list[tuple[Window, np.ndarray]] | None = None

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, chosen: np.ndarray) -> 'Objects':
        """Return the objects with these indices, or those for which an array of bool is true."""
        chosen = np.arange(len(self))[chosen]
        masks = None if self.masks is None else [self.masks[i] for i in chosen]
        return Objects(self.boxes[chosen], self.scores[chosen], self.labels[chosen], masks)

    @classmethod
    def cat(cls, parts: Sequence['Objects']) -> 'Objects':
        """Return the objects of all parts, which have masks or have none."""
        arrays = (np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)[:3])
        masks = None if parts[0].masks is None else [mask for p in parts for mask in p.masks]
        return cls(*arrays, masks)

    def by_score(self) -> 'Objects':
        """Return the objects by decreasing score."""
        return self[np.argsort(-self.scores, kind='stable')]

    def with_data(self, valid: Callable[[Window], np.ndarray | None]) -> 'Objects':
        """Return the objects without what their masks cover where the image has no data.

        Objects whose masks cover nothing else are left out. ``valid`` returns which pixels of a
        window have data; None if all of them have.
        """
        masks, numbers = [], []
        for i, (window, mask) in enumerate(self.masks):
            has_data = valid(window)
            cut = mask if has_data is None else mask & has_data
            if has_data is None or cut.any():
                masks.append((window, cut))
                numbers.append(i)
        return replace(self[np.array(numbers, int)], masks=masks)

    def placed(
        self, corner: Sequence[float], scale: Sequence[float], size: tuple[int, int]
    ) -> 'Objects':
        """Return the objects of a reduced window of an image in pixels of the image (H, W).

        Args:
            corner: The top left corner of the window in the image, y and x.
            scale: The pixels of the image in a pixel of the window, in y and x.
            size: (H, W) of the image.
        """
        boxes = self.boxes * np.tile(scale[::-1], 2) + np.tile(corner[::-1], 2)
        masks = self.masks
        if masks is not None:
            masks = [_placed(*mask, corner, scale, size) for mask in masks]
        return replace(self, boxes=boxes.astype(np.float32), masks=masks)


def _placed(
    window: Window,
    mask: np.ndarray,
    corner: Sequence[float],
    scale: Sequence[float],
    size: tuple[int, int],
) -> tuple[Window, np.ndarray]:
    """Return a mask in its window of a larger image; see :meth:`Objects.placed`."""
    spans, places = [], []
    for span, start, k, n in zip(window, corner, scale, size, strict=True):
        first = min(round(span.start * k + start), n - 1)
        spans.append(slice(first, min(max(first + 1, round(span.stop * k + start)), n)))
        centers = (np.arange(spans[-1].start, spans[-1].stop) + 0.5 - start) / k
        places.append(np.clip(centers.astype(int) - span.start, 0, span.stop - span.start - 1))
    return Window(*spans), mask[np.ix_(*places)]
