"""The files that a training run left in its work dir."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.errors import UserError, reason
from ...base.files import open_regular, read_regular
from ...base.run_files import ERRORS, ERRORS_PICTURE, LOSSES, METRICS, RUN_INFO

NUM_PICTURES = 16
TIMES = 'time', 'data_time'
NOT_SHOWN = 'epoch', 'base_lr', 'memory', *TIMES
NO_OBJECTS = -1  # COCO's precision for a size that no object has
MAX_BYTES = 2**24  # of a line or a file; the metrics of 1203 classes take 200 KB
MAX_ITER = 2**53  # above it, floats no longer represent every integer
MAX_VALUE = 3.4e38  # larger losses are not finite in float32

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
        info = json.loads(read_regular(folder / RUN_INFO, MAX_BYTES))
    except (OSError, ValueError, RecursionError):  # the report is possible without it
        info = {}
    info = info if isinstance(info, dict) else {}
    config = str(info.pop('config_text', None) or '')
    pictures = sorted(path for path in folder.glob('pictures/*.png') if path.is_file())
    name = name or folder.absolute().name
    errors = sorted(path for path in folder.glob(f'{ERRORS}/*/{ERRORS_PICTURE}') if path.is_file())
    return Run(folder, name, losses, metrics, info, config, pictures[:NUM_PICTURES], errors)


def read_lines(path: Path) -> list[tuple[str, Line]]:
    """Read the text and the numbers of each line of JSON that has an ``iter``.

    A missing file has no lines. A last line that a killed run did not finish is left out.

    Raises:
        UserError: If the file cannot be read, or a line is damaged.
    """
    lines = []
    try:
        with open_regular(path) as file:
            while raw := file.readline(MAX_BYTES):
                text = raw.decode(errors='replace').rstrip('\n')
                lines.append((text, _parse(text)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UserError(f'{path} cannot be read ({reason(error)})') from None
    except (ValueError, RecursionError) as error:
        if raw.endswith(b'\n') or len(raw) == MAX_BYTES:
            problem = f'line {len(lines) + 1} of {path} cannot be read ({reason(error)})'
            raise UserError(f'{problem}: remove the line, or move the file away') from None
    return [(text, line) for text, line in lines if 'iter' in line]


def _parse(text: str) -> Line:
    content = json.loads(text) if text.strip() else {}
    if not isinstance(content, dict):
        raise ValueError('it is not a JSON object')
    line = {}
    for name, value in content.items():
        if name == 'iter':
            if type(value) is not int or not 0 <= value <= MAX_ITER:
                raise ValueError(f'its iter is {value!r} instead of a number of iterations')
            line[name] = value
        elif name not in NOT_SHOWN and (value is None or type(value) in (int, float)):
            is_finite = value is not None and abs(value) <= MAX_VALUE
            line[name] = float(value) if is_finite else math.nan
    return line
