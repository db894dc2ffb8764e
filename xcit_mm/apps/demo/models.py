"""The models that a page offers. A config is a program, so visitors can only choose one."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...base.errors import UserError
from ...base.run_files import BEST, LAST, NON_FINITE
from ...predict.model import Model, load_model

RELEASED = re.compile(r'^Weights: (\S+)$', re.MULTILINE)  # in the docstring of a config


class OfferedModels:
    """Configs and checkpoints that visitors can choose, with the chosen model in memory.

    ``find`` returns the checkpoints of each config. With ``any_checkpoint``, visitors can name
    other weights for these configs, which are read without running their code. ``dtype`` is an
    argument of :func:`xcit_mm.load_model`.
    """

    def __init__(
        self,
        find: Callable[[], dict[str, list[str]]],
        any_checkpoint: bool,
        dtype: str | None = None,
    ) -> None:
        self.find, self.any_checkpoint, self._dtype = find, any_checkpoint, dtype
        self._key: tuple | None = None
        self._model: Model | None = None

    def load(self, config: Any, checkpoint: Any) -> Model:
        """Return the chosen model, and forget the model before it; for one thread at a time."""
        checkpoints = self.find().get(config) if isinstance(config, str) else None
        is_offered = checkpoints is not None and (self.any_checkpoint or checkpoint in checkpoints)
        if not is_offered or not checkpoint:
            raise UserError(
                f'the config {config} with the checkpoint {checkpoint} is not among those that '
                'this page offers: reload the page and choose from the lists'
            )
        key = config, checkpoint, _written(Path(config)), _written(Path(checkpoint))
        if key != self._key:
            self._key = self._model = None  # before the next model needs the memory
            self._model = load_model(config, checkpoint, dtype=self._dtype)
            self._key = key
        return self._model


def find_models(config_dir: Path, work_dirs: Path) -> dict[str, list[str]]:
    """Return the checkpoints of each config, newest first, and the configs of the newest run first.

    ``work_dirs`` holds runs or is a run, which has a config next to its checkpoints. The docstrings
    of configs in ``config_dir`` name the addresses of released weights.
    """
    runs = {}
    for folder in (work_dirs, *work_dirs.glob('*')):
        paths = [path for path in folder.glob('*.pth') if not _is_left_out(path)]
        if paths:
            runs[folder] = sorted(paths, key=_written, reverse=True)
    models = {}
    for folder, paths in sorted(runs.items(), key=lambda run: _written(run[1][0]), reverse=True):
        for config in sorted(folder.glob('*.py')):
            models[str(config)] = list(map(str, paths))
    for config in sorted(config_dir.glob('*.py')):
        with suppress(OSError):  # a folder of such a name, or a broken link
            text = config.read_text('utf-8', 'replace')  # the config is not run
            models.setdefault(str(config), RELEASED.findall(text))
    return models


def _is_left_out(path: Path) -> bool:
    """Return whether a file is a recorded bad batch, or a link to another checkpoint."""
    return path.name.startswith(NON_FINITE) or (path.name in (BEST, LAST) and path.is_symlink())


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # an address, or a checkpoint that a training run has just removed
        return 0
