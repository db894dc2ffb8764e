"""A progress bar for images."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from ..errors import printable


class ImageProgress(Progress):
    """A progress bar on the standard error output, which collects ``problems``."""

    def __init__(self) -> None:
        time = TimeRemainingColumn(elapsed_when_finished=True)
        super().__init__(BarColumn(), MofNCompleteColumn(), time, console=Console(stderr=True))
        self.problems: list[str] = []
        self._images = self.add_task('images', total=0)

    @property
    def done(self) -> int:
        return int(self.tasks[self._images].completed)

    def expect(self, number: int) -> None:
        """Raise or lower the number of expected images."""
        self.update(self._images, total=self.tasks[self._images].total + number)

    def count(self) -> None:
        self.advance(self._images)

    def report(self, problem: str) -> None:
        """Print what is wrong with an input, once."""
        if problem not in self.problems:
            self.problems.append(problem)
            self.console.print(printable(problem), markup=False, highlight=False, soft_wrap=True)

    def give_up(self, problem: str) -> None:
        """Report why an expected image is not done."""
        self.report(problem)
        self.expect(-1)
