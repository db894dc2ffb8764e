"""Read what a training left in its work dir."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError, reason
from ..files import open_regular, read_regular

LOSSES = 'losses.jsonl'
METRICS = 'metrics.jsonl'
RUN_INFO = 'run.json'
SCALARS = 'vis_data/scalars.json'  # mmengine's log: each start and resume begins a new one
PICTURES = 'pictures/*.png', '*/vis_data/vis_image/*.png'  # ours, mmengine's
NUM_PICTURES = 16
TIMES = 'time', 'data_time'
NOT_SHOWN = 'epoch', 'base_lr', 'memory', *TIMES
NO_OBJECTS = -1  # COCO's precision for a size that no object has
MAX_BYTES = 2**24  # of a line or a file; the metrics of 1203 classes take 100 KB
MAX_ITER = 2**53  # above it, floats no longer represent every integer
MAX_VALUE = 3.4e38  # larger losses are not finite in float32

Line = dict[str, float]


class NoRunError(UserError):
    """The path exists, but there is no run in it."""


@dataclass
class Run:
    """A training."""

    folder: Path
    name: str  # in plots and tables
    losses: list[Line]  # each with "iter"; NaN for what was not finite
    metrics: list[Line]  # of the validations, likewise
    info: dict[str, Any]  # the content of run.json; empty for a run of another tool
    config: str  # its text; empty if it is not there
    pictures: list[Path]


def read_runs(folders: Sequence[Path]) -> tuple[list[Run], list[UserError]]:
    """Read the runs that can be read.

    Args:
        folders: Work dirs of xcit_mm or of other tools that use mmengine.

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
    """Read a run, which may still be going or may have been killed; see :func:`read_runs`."""
    if not folder.exists():
        raise UserError(f'{folder} does not exist: name the work dir of a training')
    if not folder.is_dir():
        raise NoRunError(f'{folder} is not a folder: name the work dir of a training')
    info = {}
    if (folder / LOSSES).exists() or (folder / METRICS).exists():
        losses, metrics = ([line for _, line in read_lines(folder / f)] for f in (LOSSES, METRICS))
        info = _read_info(folder / RUN_INFO)
    else:
        losses, metrics = _read_scalars(folder)
    if not losses and not metrics:
        raise NoRunError(f'{folder} holds no run: no line in {LOSSES} or */{SCALARS}')
    metrics = [{k: v for k, v in line.items() if v != NO_OBJECTS} for line in metrics]
    configs = [_read_text(path) for path in sorted(folder.glob('*.py'))[:1]]
    config = str(info.pop('config_text', None) or ''.join(configs))
    pictures = [path for pattern in PICTURES for path in folder.glob(pattern) if path.is_file()]
    name = name or folder.absolute().name
    return Run(folder, name, losses, metrics, info, config, sorted(pictures)[:NUM_PICTURES])


def read_lines(path: Path, position: str = 'iter') -> list[tuple[str, Line]]:
    """Read the text and the numbers of each line of JSON that has a ``position``.

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
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f'{path} cannot be read ({reason(error)})') from None
    except (ValueError, RecursionError) as error:
        if raw.endswith(b'\n') or len(raw) == MAX_BYTES:
            problem = f'line {len(lines) + 1} of {path} cannot be read ({reason(error)})'
            raise UserError(f'{problem}: remove the line, or move the file away') from None
    return [(text, line) for text, line in lines if position in line]


def _parse(text: str) -> Line:
    content = json.loads(text, parse_int=float) if text.strip() else {}
    if not isinstance(content, dict):
        raise ValueError('it is not a JSON object')
    line = {}
    for name, value in content.items():
        if name in ('iter', 'step'):
            if type(value) is not float or not (value.is_integer() and 0 <= value <= MAX_ITER):
                raise ValueError(f'its {name} is {value!r} instead of a number of iterations')
            line[name] = int(value)
        elif name not in NOT_SHOWN and (value is None or type(value) is float):
            is_finite = value is not None and abs(value) <= MAX_VALUE
            line[name] = value if is_finite else math.nan
    return line


def _read_scalars(folder: Path) -> tuple[list[Line], list[Line]]:
    """Join mmengine's logs of a run: each replaces the earlier ones from its first iteration on."""
    losses: list[Line] = []
    metrics: list[Line] = []
    for path in (folder / SCALARS, *sorted(folder.glob(f'*/{SCALARS}'))):
        lines = [line for _, line in read_lines(path, 'step')]
        start = next((line['iter'] for line in lines if 'iter' in line), math.inf)
        losses = [line for line in losses if line['iter'] < start]
        metrics = [line for line in metrics if line['iter'] < start]
        for line in lines:
            step = line.pop('step')
            if 'iter' in line:
                losses.append(line)
            else:  # a validation, whose step may be an epoch
                metrics.append({**line, 'iter': max(step, losses[-1]['iter'] if losses else 0)})
    return losses, metrics


def _read_info(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read_text(path))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _read_text(path: Path) -> str:
    try:
        return read_regular(path, MAX_BYTES).decode(errors='replace')
    except OSError:  # the report does without it
        return ''
