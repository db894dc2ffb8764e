"""Which metrics belong together, what they are called, and which of them counts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .reading import PLACES, TIMES, Line, Run

COCO_ROWS = {'bbox': 'boxes', 'segm': 'masks'}
COCO_COLUMNS = {
    'mAP': 'AP',
    'mAP_50': 'AP50',
    'mAP_75': 'AP75',
    'mAP_s': 'small',
    'mAP_m': 'medium',
    'mAP_l': 'large',
}
MAX_OTHERS = 12  # with a plot each: an evaluation by class has some of every class
NO_METRICS = (*PLACES, *TIMES)


@dataclass(frozen=True)
class Group:
    """Metrics that one table and one plot show.

    Attributes:
        title: What they are.
        labels: How each is called, by its name in the log; the first decides which is best.
        digits: How many to show.
        larger_is_better: Not known of a metric that is none of those here.
    """

    title: str
    labels: dict[str, str]
    digits: int
    larger_is_better: bool = True

    @property
    def first(self) -> str:
        return next(iter(self.labels))

    def of(self, run: Run) -> list[Line]:
        """The validations that have the first metric, in their order."""
        return [line for line in run.metrics if not math.isnan(line.get(self.first, math.nan))]


KNOWN = (
    Group('Box AP', {f'coco/bbox_{name}': label for name, label in COCO_COLUMNS.items()}, 3),
    Group('Mask AP', {f'coco/segm_{name}': label for name, label in COCO_COLUMNS.items()}, 3),
    Group('Segmentation, percent', dict(mIoU='mean IoU', mAcc='class mean', aAcc='pixels'), 2),
)


def groups(runs: Sequence[Run]) -> list[Group]:
    """The groups that occur; each of the first metrics of none of them is one of its own."""
    names = _names(runs)
    found = []
    for group in KNOWN:
        labels = {name: label for name, label in group.labels.items() if name in names}
        if labels:
            found.append(Group(group.title, labels, group.digits))
    others = _others(names)[:MAX_OTHERS]
    return [*found, *(Group(name, {name: name}, 3, larger_is_better=False) for name in others)]


def left_over(runs: Sequence[Run]) -> list[str]:
    """The metrics that are in none of the groups."""
    return _others(_names(runs))[MAX_OTHERS:]


def _names(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(n for run in runs for line in run.metrics for n in line))


def _others(names: Sequence[str]) -> list[str]:
    known = {name for group in KNOWN for name in group.labels}
    return [name for name in names if name not in known and name not in NO_METRICS]
