"""The metric by which validations are compared, and the best of them."""

import math
from collections.abc import Iterable, Sequence

from .plots import MAIN_METRICS
from .reading import Line


def main_metric(names: Iterable[str]) -> str | None:
    """Return the first of the main metrics among names. More of it is better."""
    names = set(names)
    return next((name for name in MAIN_METRICS if name in names), None)


def best_validation(lines: Sequence[Line], name: str, less: bool = False) -> Line | None:
    """Return the first of the validations with the largest value of a metric, or the smallest."""
    lines = [line for line in lines if math.isfinite(line.get(name, math.nan))]
    return (min if less else max)(lines, key=lambda line: line[name], default=None)
