"""How far a batch of images is, and what is said on the way."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TimeRemainingColumn,
)
from rich.text import Text

from ..errors import printable


class ImageProgress(Progress):
    """A progress bar on the standard error output, with images a second.

    Attributes:
        problems: The sentences that were reported.
    """

    def __init__(self) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), _Speed(), TimeRemainingColumn())
        super().__init__(*columns, console=Console(stderr=True))
        self.problems: list[str] = []
        self._images = self.add_task('images', total=0)

    @property
    def done(self) -> int:
        """The number of images so far."""
        return int(self.tasks[self._images].completed)

    def expect(self, number: int) -> None:
        """There are so many images more, or fewer, than was known."""
        total = self.tasks[self._images].total + number
        self.update(self._images, total=total)

    def count(self) -> None:
        """One more image is done."""
        self.advance(self._images)

    def report(self, problem: str) -> None:
        """Say what is wrong with an input, in a sentence and once."""
        if problem not in self.problems:
            self.problems.append(problem)
            said = printable(problem)  # names of files
            self.console.print(said, markup=False, highlight=False, soft_wrap=True)


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.completed / task.elapsed if task.elapsed else 0
        if 0 < speed < 1:
            return Text(f'{1 / speed:.1f} s an image')
        return Text(f'{speed:.1f} images a second')
