"""Show the losses and metrics of a run in TensorBoard."""

from pathlib import Path

from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...environment import require
from ...files import require_no_links
from ...run_report.reading import LOSSES, METRICS
from . import order
from .loss_log import LossLogHook

PREFIXES = {LOSSES: 'train', METRICS: 'val'}


@HOOKS.register_module()
class TensorBoardHook(LossLogHook):
    """Write the numbers of ``losses.jsonl`` and ``metrics.jsonl`` to ``<work_dir>/tensorboard``.

    A resume hides the iterations after its checkpoint, which come again. (mmengine's
    TensorboardVisBackend begins another curve, and places validations by their epoch.)

    Raises:
        DependencyError: If the package tensorboard is missing.
    """

    priority = order.TENSORBOARD

    def __init__(self) -> None:
        require('tensorboard')

    def _begin(self, runner: Runner) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(runner.work_dir, 'tensorboard')
        require_no_links(folder)
        self._writer = SummaryWriter(folder, purge_step=runner.iter + 1)

    def _write(self, runner: Runner, file: str, line: dict[str, float]) -> None:
        for name in line.keys() - {'iter', 'epoch'}:
            self._writer.add_scalar(f'{PREFIXES[file]}/{name}', line[name], line['iter'])
        self._writer.flush()
