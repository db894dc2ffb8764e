"""The progress of images, or of the passes over an image, and what went wrong."""

from collections.abc import Callable, Iterable, Sequence
from threading import RLock
from time import monotonic
from typing import Any, TypeVar

from rich import progress
from rich.console import Console
from rich.text import Text

from .errors import printable

Tile = TypeVar('Tile')

LOG_INTERVAL = 60  # seconds between two lines in a log


class Progress:
    """A display that shows nothing; see :class:`TileProgress`."""

    def expect(self, number: int) -> None:
        """Start a number of passes, each of which takes about the same time."""

    def __call__(self, tiles: Sequence[Tile], what: str) -> Iterable[Tile]:
        """Yield the tiles of a pass."""
        return tiles

    def report(self, sentence: str) -> None:
        """Show a sentence to the user."""


silent = Progress()


class Bar(Progress):
    """A bar on the standard error output, within a ``with`` block.

    Args:
        columns: The columns of the display.
        is_kept: Whether the bar stays on the screen after the block.

    Attributes:
        problems: What :meth:`give_up` has reported.
    """

    def __init__(self, *columns: progress.ProgressColumn, is_kept: bool = True) -> None:
        self.problems: list[str] = []
        options = dict(console=Console(stderr=True), transient=not is_kept)
        self._display = progress.Progress(*columns, **options)
        self._bar = self._display.add_task('', total=None)

    def __enter__(self) -> 'Bar':
        self._display.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._display.stop()

    def report(self, sentence: str) -> None:
        console = self._display.console
        console.print(printable(sentence), markup=False, highlight=False, soft_wrap=True)

    def give_up(self, problem: str) -> None:
        """Report, once, why an image cannot be predicted."""
        if problem not in self.problems:
            self.problems.append(problem)
            self.report(problem)


class TileProgress(Bar):
    """A bar of the passes over an image, with the name and the tile of the current pass."""

    def __init__(self, is_kept: bool = True) -> None:
        super().__init__(
            progress.TextColumn('{task.description}'),
            progress.BarColumn(),
            progress.TextColumn('{task.percentage:>3.0f}%'),
            progress.TimeRemainingColumn(elapsed_when_finished=True),
            is_kept=is_kept,
        )

    def expect(self, number: int) -> None:
        self._display.reset(self._bar, total=number)

    def __call__(self, tiles: Sequence[Tile], what: str) -> Iterable[Tile]:
        for number, tile in enumerate(tiles, 1):
            text = f'{what}, tile {number} of {len(tiles)}'
            self._display.update(self._bar, description=text)
            yield tile
            self._display.advance(self._bar, 1 / len(tiles))


class LoggedProgress(Progress):
    """A line in a log from time to time, if there is no terminal for a bar.

    Args:
        about: The name of the image, with which each line starts.
        log: Writes a line.
    """

    def __init__(self, about: str, log: Callable[[str], object]) -> None:
        self._about, self._log = about, log
        self._next = monotonic() + LOG_INTERVAL

    def __call__(self, tiles: Sequence[Tile], what: str) -> Iterable[Tile]:
        for number, tile in enumerate(tiles, 1):
            if monotonic() >= self._next:
                self._next = monotonic() + LOG_INTERVAL
                self._log(f'{self._about}: {what}, tile {number} of {len(tiles)}')
            yield tile

    def report(self, sentence: str) -> None:
        self._log(sentence)


class ImageProgress(Bar):
    """A bar of images and their rate; several threads may use it."""

    def __init__(self) -> None:
        time = progress.TimeRemainingColumn(elapsed_when_finished=True)
        super().__init__(progress.BarColumn(), progress.MofNCompleteColumn(), time, RateColumn())
        self._changes = RLock()
        self.expect(0)

    @property
    def done(self) -> int:
        return int(self._display.tasks[self._bar].completed)

    def expect(self, number: int) -> None:
        """Raise or lower the number of expected images."""
        with self._changes:
            total = (self._display.tasks[self._bar].total or 0) + number
            self._display.update(self._bar, total=total, visible=total > 0)  # not 0/0

    def count(self) -> None:
        self._display.advance(self._bar)

    def give_up(self, problem: str, images: int = 1) -> None:
        """Report why a number of expected images cannot be predicted."""
        super().give_up(problem)
        self.expect(-images)


class RateColumn(progress.ProgressColumn):
    """Images per second since the start."""

    def render(self, task: progress.Task) -> Text:
        elapsed = task.finished_time or task.elapsed
        return Text(f'{task.completed / elapsed:.1f} images/s' if elapsed else '')
