"""The files that a training run left in its work dir."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.errors import UserError, reason
from ...base.run_files import ERRORS, ERRORS_PICTURE, LOSSES, METRICS, RUN_INFO

NUM_PICTURES = 16
TIMES = 'time', 'data_time'
NOT_SHOWN = 'epoch', 'base_lr', 'memory', *TIMES
NO_OBJECTS = -1  # COCO's precision for a size that no object has

Line = dict[str, float]


class NoRunError(UserError):
    """The path exists, but there is no run in it."""


@dataclass
class Run:
    """A training run."""

    folder: Path
    name: str  # in plots and tables
    losses: list[Line]  # each with "iter"; NaN for what was not finite
    metrics: list[Line]  # of the validations, likewise
    info: dict[str, Any]  # the content of run.json; empty if it cannot be read
    config: str  # its text; empty if it is not known
    pictures: list[Path]
    errors: list[Path]  # pictures of the errors of the last validation


def read_runs(folders: Sequence[Path]) -> tuple[list[Run], list[UserError]]:
    """Read the runs that can be read.

    Returns:
        The runs, and an error for each of the other folders: a :class:`NoRunError` if the folder
        exists but holds no run.
    """
    paths = [folder.absolute() for folder in folders]
    names = [path.name for path in paths]
    if len(set(names)) < len(set(paths)):
        common = os.path.commonpath([path.parent for path in paths])
        names = [os.path.relpath(path, common) for path in paths]
    runs, problems = [], []
    for folder, name in zip(folders, names, strict=True):
        try:
            runs.append(read_run(folder, name))
        except UserError as error:
            problems.append(error)
    return runs, problems


def read_run(folder: Path, name: str | None = None) -> Run:
    """Read a run that may be in progress or may have been killed; see :func:`read_runs`."""
    if not folder.exists():
        raise UserError(f'{folder} does not exist: name the work dir of a run')
    losses, metrics = ([line for _, line in read_lines(folder / f)] for f in (LOSSES, METRICS))
    if not losses and not metrics:
        raise NoRunError(f'{folder} holds no run: no line in {LOSSES} or {METRICS}')
    metrics = [{k: v for k, v in line.items() if v != NO_OBJECTS} for line in metrics]
    try:
        info = json.loads(Path(folder, RUN_INFO).read_text(encoding='utf-8'))
    except (OSError, ValueError):  # the report is possible without it
        info = {}
    config = str(info.pop('config_text', None) or '')
    pictures = sorted(path for path in folder.glob('pictures/*.png') if path.is_file())
    name = name or folder.absolute().name
    errors = sorted(path for path in folder.glob(f'{ERRORS}/*/{ERRORS_PICTURE}') if path.is_file())
    return Run(folder, name, losses, metrics, info, config, pictures[:NUM_PICTURES], errors)


def read_lines(path: Path) -> list[tuple[str, Line]]:
    """Read the text and the numbers of each line of JSON that has an ``iter``.

    A missing file has no lines. A last line that a killed run did not finish is left out.

    Raises:
        UserError: If a line is damaged.
    """
    if not path.is_file():
        return []
    *texts, _ = path.read_text(encoding='utf-8', errors='replace').split('\n')
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            lines.append((text, _parse(text)))
        except (AttributeError, TypeError, ValueError) as error:
            raise UserError(
                f'line {number} of {path} cannot be read ({reason(error)}): remove the line, or '
                'move the file away'
            ) from None
    return [(text, line) for text, line in lines if 'iter' in line]


def _parse(text: str) -> Line:
    line = {}
    for name, value in (json.loads(text) if text.strip() else {}).items():
        if name == 'iter':
            line[name] = int(value)
        elif name not in NOT_SHOWN and (value is None or type(value) in (int, float)):
            line[name] = float(value) if value is not None and math.isfinite(value) else math.nan
    return line
