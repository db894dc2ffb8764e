"""What a training left in its folder: losses, metrics, facts, pictures."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError, printable, reason
from ..files import read_regular

# Of our runs, exact over all their interruptions.
LOSSES = 'losses.jsonl'
METRICS = 'metrics.jsonl'
FACTS = 'run.json'
# Of any run of mmengine, which begins a new folder with every start and resume.
SCALARS = 'vis_data/scalars.json'
CONFIG = 'vis_data/config.py'
PICTURES = ('pictures/*.png', '*/vis_data/vis_image/*.png')
NUM_PICTURES = 16
NO_OBJECTS = -1  # COCO's precision of a size that no object has
STEPS = ('iter', 'step')
PLACES = (*STEPS, 'epoch')
TIMES = ('time', 'data_time')  # of this machine, not of the run

MAX_BYTES = 2**24  # of a line, of the facts, of a config; 1203 classes have 100 KB of metrics
MAX_NAME = 200  # characters of a metric's name, and of a fact
MAX_COUNT = 2**53  # iterations or parameters; to here NumPy and JSON have the same integers
LARGEST = 3.4e38  # a loss; what is larger is not finite in float32

Line = dict[str, float]


class NoRunError(UserError):
    """What is named is there, but holds nothing to draw."""


@dataclass
class Run:
    """A training.

    Attributes:
        folder: Its work dir.
        name: What tells it from the others that are shown.
        losses: A line for every iteration that was logged, with its ``iter``; NaN is a value
            that was not finite.
        metrics: The same for every validation.
        facts: As :func:`xcit_mm.engine.facts.facts_of` gives them; empty for a run that is not
            of our tools.
        config: The text of its config; empty if it is not there.
        pictures: Files with predictions.
        changed: When something was logged last, in seconds since 1970.
    """

    folder: Path
    name: str
    losses: list[Line]
    metrics: list[Line]
    facts: dict[str, Any]
    config: str
    pictures: list[Path]
    changed: float

    @property
    def num_iters(self) -> int:
        """The last iteration that was logged."""
        return int(max(line['iter'] for line in (*self.losses[-1:], *self.metrics[-1:])))


def read_runs(folders: Sequence[Path]) -> tuple[list[Run], list[UserError]]:
    """Read what can be read.

    Args:
        folders: Work dirs, of our tools or of others that mmengine trains with.

    Returns:
        The runs, and what is wrong with each of the other folders: a :class:`NoRunError` where
        one is there but holds none.
    """
    runs, problems = [], []
    for folder, name in zip(folders, _names(folders), strict=True):
        try:
            runs.append(read_run(folder, name))
        except UserError as error:
            problems.append(error)
    return runs, problems


def read_run(folder: Path, name: str) -> Run:
    """Read a run, also one that is still going or was killed in the midst of a line.

    Raises:
        UserError: If the folder is missing, or a log cannot be read.
        NoRunError: If there is no run in it.
    """
    if not folder.exists():
        raise UserError(f'{folder} does not exist: name the work dir of a training')
    if not folder.is_dir():
        raise NoRunError(f'{folder} is no folder: name the work dir of a training')
    ours = [path for path in (folder / LOSSES, folder / METRICS) if path.exists()]
    logs = ours or _scalar_files(folder)
    if ours:  # and what other runs left in the same folder is none of it
        losses, metrics = read_log(folder / LOSSES), read_log(folder / METRICS)
    else:
        losses, metrics = _merged(logs)
    if not losses and not metrics:
        raise NoRunError(_nothing_in(folder, logs))
    facts = _facts(folder / FACTS) if ours else {}
    return Run(
        folder,
        name,
        losses,
        [{k: v for k, v in line.items() if v != NO_OBJECTS} for line in metrics],
        facts,
        facts.pop('config_text', '') or _config_text(folder),
        _pictures(folder),
        max(path.stat().st_mtime for path in logs),
    )


def read_log(path: Path) -> list[Line]:
    """Read the lines of ``losses.jsonl`` or ``metrics.jsonl``; none, if it is missing.

    Raises:
        UserError: As of :func:`read_lines`.
    """
    return [line for _, line in read_lines(path) if 'iter' in line]


def read_lines(path: Path) -> list[tuple[str, Line]]:
    """Read a file of JSON lines, and check each of them.

    Returns:
        The text and the numbers of each line that has an iteration or a step; none, if the file
        is missing. What a killed run did not finish, at the end, is left out.

    Raises:
        UserError: If the file cannot be read, or a line is no JSON object or has no integer as
            its iteration.
    """
    if not path.exists():
        return []
    if not path.is_file():
        raise UserError(f'{path} is a folder, a pipe or a device instead of a log: move it away')
    lines = []
    try:
        with path.open('rb') as file:
            while raw := file.readline(MAX_BYTES):
                text = raw.decode(errors='replace').rstrip('\n')
                try:
                    line = _line(text)
                except (ValueError, RecursionError) as error:
                    if not raw.endswith(b'\n') and len(raw) < MAX_BYTES:
                        break
                    raise UserError(
                        f'line {len(lines) + 1} of {path} cannot be read ({reason(error)}): remove '
                        'the line, or move the file away'
                    ) from None
                lines.append((text, line))
    except OSError as error:
        raise UserError(f'{path} cannot be read ({reason(error)})') from None
    return [(text, line) for text, line in lines if any(place in line for place in STEPS)]


def _names(folders: Sequence[Path]) -> list[str]:
    """The ends of the paths, as long as it takes to tell them apart."""
    parts = [folder.absolute().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ['/'.join(p[-length:]) for p in parts]
        if len(set(names)) == len(set(parts)):
            break
    return names


def _line(text: str) -> Line:
    """The numbers of a line, NaN for what is not finite; none, if it is empty."""
    if not text.strip():
        return {}
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError('it is no JSON object')
    for place in STEPS:
        if place in content and not _is_count(content[place]):
            raise ValueError(f'its {place} is {content[place]!r}, which is no count of iterations')
    return {
        printable(name, MAX_NAME): value if name in STEPS else _number(value)
        for name, value in content.items()
        if value is None or type(value) in (int, float)
    }


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _number(value: float | None) -> float:
    return float(value) if value is not None and abs(value) <= LARGEST else math.nan


def _scalar_files(folder: Path) -> list[Path]:
    """mmengine's, from the oldest to the newest: their folders are named by the time."""
    found = [folder / SCALARS, *sorted(folder.glob(f'*/{SCALARS}'))]
    return [path for path in found if path.is_file()]


def _merged(paths: Iterable[Path]) -> tuple[list[Line], list[Line]]:
    """The losses and metrics of one run, of several files.

    From where a file begins it replaces those before it: a resume takes the iterations after
    the last checkpoint once more, a new start all of them.
    """
    losses: list[Line] = []
    metrics: list[Line] = []
    for path in paths:
        begun = False
        for _, line in read_lines(path):
            if 'iter' not in line:  # of a validation, whose step may be one of epochs
                last = losses[-1]['iter'] if losses else 0
                metrics.append({**line, 'iter': max(line['step'], last)})
                continue
            if not begun:
                losses = [other for other in losses if other['iter'] < line['iter']]
                metrics = [other for other in metrics if other['iter'] < line['iter']]
                begun = True
            losses.append(line)
    return losses, metrics


def _facts(path: Path) -> dict[str, Any]:
    """What is of the right kind in it, a number or a text each but for two tables."""
    try:
        content = json.loads(read_regular(path, MAX_BYTES))
    except (OSError, ValueError, RecursionError):  # the curves are there without
        return {}
    if not isinstance(content, dict):
        return {}
    config = content.pop('config_text', None)
    tables = {}
    for name, is_right in (('parameters', _is_count), ('versions', _is_fact)):
        table = content.pop(name, None)
        items = table.items() if isinstance(table, dict) else ()
        tables[name] = {_short(key): _short(fact) for key, fact in items if is_right(fact)}
    if not _is_count(content.get('iterations')):
        content.pop('iterations', None)
    facts = {_short(key): _short(fact) for key, fact in content.items() if _is_fact(fact)}
    return facts | tables | dict(config_text=config if isinstance(config, str) else '')


def _is_fact(value: object) -> bool:
    return isinstance(value, (str, int, float))


def _short(value: str | float) -> str | float:
    return printable(value, MAX_NAME) if isinstance(value, str) else value


def _config_text(folder: Path) -> str:
    found = [*folder.glob('*.py')] or [*folder.glob(CONFIG), *folder.glob(f'*/{CONFIG}')]
    newest = max(found, key=_changed, default=None)
    try:
        return '' if newest is None else read_regular(newest, MAX_BYTES).decode(errors='replace')
    except OSError:  # the curves are there without
        return ''


def _pictures(folder: Path) -> list[Path]:
    found = next(filter(None, (list(folder.glob(pattern)) for pattern in PICTURES)), [])
    found = [path for path in found if path.is_file()]  # a pipe would never be read
    return sorted(sorted(found, key=_changed, reverse=True)[:NUM_PICTURES])


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # a training replaces its pictures
        return 0.0


def _nothing_in(folder: Path, logs: list[Path]) -> str:
    if logs:
        return f'{folder} holds a run of which nothing is logged yet'
    runs = {path.parent for path in folder.glob(f'*/{LOSSES}')}
    runs |= {path.parents[2] for path in folder.glob(f'*/*/{SCALARS}')}
    hint = f'; did you mean {" ".join(sorted(map(str, runs)))}?' if runs else ''
    return f'{folder} holds no run: neither {LOSSES} nor */{SCALARS} is there{hint}'
