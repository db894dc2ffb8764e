"""Losses and metrics for Weights & Biases."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..checkpoints.recipe import recipe_of
from ..report.reading import Line
from .curves import PROJECT, CurveHook


@HOOKS.register_module()
class WandbHook(CurveHook):
    """Send losses and metrics to Weights & Biases, or write them to ``<work_dir>/wandb``.

    The variables of the package name the server, the project and the key; ``WANDB_MODE=offline``
    needs no network. When an offline run is resumed, it is written again from its first step,
    because the package loses unflushed data when a process is killed. At the end of the run, only
    the folder with the whole run is left, for ``wandb sync``.
    """

    name = 'wandb'
    remedy = (
        'call "wandb login" or set WANDB_API_KEY, and check the network; WANDB_MODE=offline needs '
        'neither, and "wandb sync" uploads such a run later'
    )

    def _connect(self, runner: Runner, run_id: str | None) -> str:
        import wandb

        named = os.environ.get('WANDB_NAME') or Path(runner.work_dir).resolve().name
        self._run = wandb.init(
            id=run_id,
            resume='allow',  # an offline run may continue online
            dir=runner.work_dir,
            project=os.environ.get('WANDB_PROJECT', PROJECT),
            name=None if run_id else named,  # it may have been renamed
            config=recipe_of(runner.cfg),
            settings=wandb.Settings(console='off'),  # the log is in the work dir
        )
        self._next_step = self._run.starting_step
        self._newest = self._next_step - 1
        return self._run.id

    def _write(self, rows: Sequence[Line]) -> None:
        for row in rows:
            if row['iter'] >= self._next_step:
                values = {name: value for name, value in row.items() if name != 'iter'}
                self._run.log(values, step=row['iter'])
                self._next_step = row['iter'] + 1

    def _close(self) -> None:
        self._run.finish()
        if self._run.offline:
            whole = Path(self._run.dir).parent
            for folder in whole.parent.glob(f'offline-run-*-{self._run.id}'):
                if folder.resolve() != whole.resolve():
                    shutil.rmtree(folder)
