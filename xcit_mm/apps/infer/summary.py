"""A summary of the predictions for several scenes, for the console."""

from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from ...base.errors import printable
from ...predict.large.large_predictions import LargeDetections, LargeHeights, LargePrediction

MOST = 8  # classes that are named for a scene


class Predicted(NamedTuple):
    """What was predicted for a scene."""

    name: str
    prediction: str
    size: tuple[int, int]
    seconds: float


def summary(prediction: LargePrediction) -> str:
    """Return what was found in a scene."""
    if isinstance(prediction, LargeHeights):
        low, high = prediction.limits
        return f'heights from {low:.4g} to {high:.4g}'
    if isinstance(prediction, LargeDetections):
        counts = [(prediction.labels == i).sum() for i in range(len(prediction.classes))]
        order = sorted(range(len(counts)), key=lambda i: -counts[i])
        names = [f'{counts[i]} {prediction.classes[i]}' for i in order if counts[i]]
        number = '1 object' if len(prediction) == 1 else f'{len(prediction)} objects'
    else:
        shares = prediction.shares()
        names = [f'{prediction.classes[i]} {share:.1%}' for i, share in shares.items()]
        number = '1 class' if len(names) == 1 else f'{len(names)} classes'
    listed = ', '.join(names[:MOST]) + (', ...' if len(names) > MOST else '')
    return f'{number}: {listed}' if names else number


def print_summary(scenes: Sequence[Predicted], problems: int) -> None:
    """Print a table of the scenes of a run, and the number of those that were not predicted."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name, justify in (('scene', 'left'), ('pixels', 'right'), ('found', 'left')):
        table.add_column(name, justify=justify, overflow='fold')
    table.add_column('seconds', justify='right')
    for scene in scenes:
        height, width = scene.size
        cells = scene.name, f'{width}x{height}', scene.prediction, f'{scene.seconds:.0f}'
        table.add_row(*map(printable, cells))
    console = Console(highlight=False, markup=False)
    console.print(table)
    failed = f'; {problems} could not be predicted' if problems else ''
    number = '1 scene' if len(scenes) == 1 else f'{len(scenes)} scenes'
    seconds = f'{sum(scene.seconds for scene in scenes):.0f}'
    console.print(f'{number} in {seconds} second{"s" * (seconds != "1")}{failed}')
