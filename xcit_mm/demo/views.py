"""What a page shows of a prediction: the picture, a summary and a table."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UserError
from ..inference import Detections, Segmentation


@dataclass(frozen=True)
class View:
    """How a visitor wants to see a prediction.

    Attributes:
        score: Detections with a lower one are left out, 0..1.
        boxes: Whether boxes, classes and scores are drawn.
        masks: Whether masks are drawn.
        opacity: Of a segmentation over its picture, 0..1.

    Raises:
        UserError: If a value is of another kind, as only a request that no page made has it.
    """

    score: float
    boxes: bool
    masks: bool
    opacity: float

    def __post_init__(self) -> None:
        for name in ('score', 'opacity'):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value <= 1:
                raise UserError(f'{name}={value!r} is not a number between 0 and 1')
        for name in ('boxes', 'masks'):
            if type(getattr(self, name)) is not bool:
                raise UserError(f'{name}={getattr(self, name)!r} is neither True nor False')


def draw(found: Detections | Segmentation, view: View) -> np.ndarray:
    """Draw it over its picture: RGB, (H, W, 3) uint8."""
    if isinstance(found, Segmentation):
        return found.draw(view.opacity)
    return found.above(view.score).draw(view.boxes, view.masks)


def summary(found: Detections | Segmentation, view: View) -> str:
    """How much was found, such as '3 of 100 objects'."""
    if isinstance(found, Segmentation):
        return _count(len(found.shares()), 'class', 'classes')
    return f'{len(found.above(view.score))} of {_count(len(found), "object", "objects")}'


def rows(found: Detections | Segmentation, view: View) -> dict[str, Any]:
    """What was found, a row a class, the headers and the data as Gradio's table takes them."""
    if isinstance(found, Segmentation):
        data = [[found.classes[i], f'{share:.1%}'] for i, share in found.shares().items()]
        return dict(headers=['Class', 'Share of the picture'], data=data)
    shown = found.above(view.score)
    scores: dict[int, list[float]] = {}
    for label, score in zip(shown.labels.tolist(), shown.scores.tolist(), strict=True):
        scores.setdefault(label, []).append(score)
    data = [[found.classes[i], len(of), f'{max(of):.2f}'] for i, of in scores.items()]
    data.sort(key=lambda row: row[1], reverse=True)
    return dict(headers=['Class', 'Objects', 'Best score'], data=data)


def _count(number: int, one: str, many: str) -> str:
    return f'{number} {one if number == 1 else many}'
