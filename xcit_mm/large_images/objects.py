"""The objects of an image of any size, whose masks are windows of the image."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from ..scenes.geometry import Window


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

    def __getitem__(self, kept: np.ndarray) -> 'Objects':
        """Return the objects with these indices, or those for which an array of bool is true."""
        kept = np.arange(len(self))[kept]
        masks = None if self.masks is None else [self.masks[i] for i in kept]
        return Objects(self.boxes[kept], self.scores[kept], self.labels[kept], masks)

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
        masks, kept = [], []
        for i, (window, mask) in enumerate(self.masks):
            has_data = valid(window)
            cut = mask if has_data is None else mask & has_data
            if has_data is None or cut.any():
                masks.append((window, cut))
                kept.append(i)
        return replace(self[np.array(kept, int)], masks=masks)
