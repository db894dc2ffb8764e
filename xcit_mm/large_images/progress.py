"""Show the pass, the tile and the time left in a progress bar."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich import progress
from rich.console import Console

from ..errors import printable

Tile = TypeVar('Tile')


class Progress:
    """A display of the progress that shows nothing; see :class:`Bar`."""

    def expect(self, passes: int) -> None:
        """Start a number of passes, each of which takes about the same time."""

    def __call__(self, tiles: Sequence[Tile], what: str) -> Iterable[Tile]:
        """Yield the tiles of a pass."""
        return tiles

    def report(self, sentence: str) -> None:
        """Show a sentence to the user."""

    def give_up(self, problem: str) -> None:
        """Report why an image cannot be predicted."""


silent = Progress()


class Bar(Progress):
    """A :class:`rich.progress.Progress` with one bar, which its caller starts and stops.

    The list ``problems`` collects the problems that :meth:`give_up` reports.
    """

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems
        self.display = progress.Progress(
            progress.TextColumn('{task.description}'),
            progress.BarColumn(),
            progress.TextColumn('{task.percentage:>3.0f}%'),
            progress.TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
        )
        self._task = self.display.add_task('', total=None)

    def expect(self, passes: int) -> None:
        self.display.reset(self._task, total=passes)

    def __call__(self, tiles: Sequence[Tile], what: str) -> Iterable[Tile]:
        for number, tile in enumerate(tiles, 1):
            text = f'{what}, tile {number} of {len(tiles)}'
            self.display.update(self._task, description=text)
            yield tile
            self.display.advance(self._task, 1 / len(tiles))

    def report(self, sentence: str) -> None:
        console = self.display.console
        console.print(printable(sentence), markup=False, highlight=False, soft_wrap=True)

    def give_up(self, problem: str) -> None:
        self._problems.append(problem)
        self.report(problem)
