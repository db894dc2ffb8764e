"""Tables and pictures of the errors of a model."""

from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.evaluator import Evaluator
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ...base.errors import reason
from ...base.files import is_disk_full
from ...base.run_files import ERRORS, ERRORS_PICTURE
from . import order


@HOOKS.register_module()
class ModelErrorsHook(Hook):
    """Write the errors of a model as CSV files, and draw them.

    The errors of a validation go to ``<work_dir>/errors``, where the next validation replaces them.
    There is a folder for each kind of what is counted, such as ``boxes``; see
    :class:`~xcit_mm.predict.errors.error_tables.ErrorTables`.

    Args:
        test_dir: Folder for the errors of a test; None: they are not counted.
    """

    priority = order.MODEL_ERRORS

    def __init__(self, test_dir: str | None = None) -> None:
        self.test_dir = test_dir

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        folder = Path(runner.work_dir, ERRORS)
        try:
            _write(runner.val_loop.evaluator, folder)
        except Exception as error:  # such as a table that is open in Excel on Windows
            if is_disk_full(error):
                raise
            runner.logger.warning(f'The errors of the model are not written ({reason(error)})')

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        if self.test_dir is not None:
            _write(runner.test_loop.evaluator, Path(self.test_dir))


def _write(evaluator: Evaluator, folder: Path) -> None:
    from ...predict.errors.error_charts import draw_errors

    metrics: list[Any] = evaluator.metrics if is_main_process() else []
    for metric in metrics:
        for tables in metric.error_tables() if hasattr(metric, 'error_tables') else ():
            tables.write(folder / tables.of)
            draw_errors(tables, folder / tables.of / ERRORS_PICTURE)
