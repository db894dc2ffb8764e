"""A report of runs as one HTML file, which needs no network and no other file."""

import base64
import io
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from PIL import Image

from ..files import write_whole
from .curves import LOSS, plots, svg
from .metrics import Group, groups, left_over
from .reading import PLACES, TIMES, Line, Run

TEMPLATE = Path(__file__).with_name('page.html')
PICTURE_SIZE = 960, 960  # pixels at most
JPEG_QUALITY = 85
LOSS_DIGITS = 4
METRIC_DIGITS = 3
NOT_LOSSES = (*PLACES, *TIMES, 'memory', 'base_lr')
MISSING = '-'

Table = dict[str, Any]  # title, head and rows of text


def write_page(runs: Sequence[Run], path: Path) -> None:
    """Write tables, curves, pictures, configs and versions, whole or not at all.

    Args:
        runs: One, or several to be compared.
        path: The file, which is replaced.
    """
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.from_string(TEMPLATE.read_text()).render(
        title=runs[0].name if len(runs) == 1 else f'{len(runs)} runs',
        drawn=_moment(time.time()),
        results=[
            _overview(runs),
            *(_result(group, runs) for group in groups(runs)),
            _left_over(runs),
            _losses(runs),
        ],
        plots=[(plot.title, _uri(svg(plot), 'svg+xml')) for plot in plots(runs)],
        runs=[_section(run) for run in runs],
    )
    with write_whole(path) as file:
        file.write(page.encode(errors='replace'))


def _overview(runs: Sequence[Run]) -> Table:
    rows = []
    for run in runs:
        planned, parameters = run.facts.get('iterations'), run.facts.get('parameters', {})
        rows.append(
            [
                run.name,
                f'{run.num_iters:,} of {planned:,}' if planned else f'{run.num_iters:,}',
                f'{parameters["all"] / 1e6:.2f} M' if 'all' in parameters else MISSING,
                str(sum(math.isnan(line.get(LOSS, 0)) for line in run.losses)),
                _moment(run.changed),
            ]
        )
    head = ['run', 'iterations', 'parameters', 'losses not finite', 'last written']
    return dict(title='Overview', head=head, rows=rows)


def _result(group: Group, runs: Sequence[Run]) -> Table:
    """The last validation of each run, and the best one, where that is another."""
    rows = []
    for run in runs:
        validations = group.of(run)
        if not validations:
            continue
        last, best = validations[-1], max(validations, key=lambda line: line[group.first])
        chosen = {'last': last}
        if group.larger_is_better and best[group.first] > last[group.first]:
            chosen['best'] = best
        for what, line in chosen.items():
            rows.append([run.name, f'{what}, at {line["iter"]:,}', *_values(group, line)])
    head = ['run', 'iteration', *group.labels.values()]
    return dict(title=group.title, head=head, rows=rows)


def _left_over(runs: Sequence[Run]) -> Table:
    """A row for each metric without a plot: there may be more than a page has room for columns."""
    rows = []
    for name in left_over(runs):
        last = [[line[name] for line in run.metrics if name in line][-1:] for run in runs]
        rows.append([name, *(_text(*value or [None], METRIC_DIGITS) for value in last)])
    return dict(
        title='Other metrics, last', head=['metric', *(run.name for run in runs)], rows=rows
    )


def _losses(runs: Sequence[Run]) -> Table:
    names = dict.fromkeys(n for run in runs for line in run.losses[-1:] for n in line)
    names = [name for name in names if name not in NOT_LOSSES]
    rows = []
    for run in runs:
        for line in run.losses[-1:]:
            values = [_text(line.get(name), LOSS_DIGITS) for name in names]
            rows.append([run.name, f'{line["iter"]:,}', *values])
    return dict(title='Training, last logged', head=['run', 'iteration', *names], rows=rows)


def _section(run: Run) -> dict[str, Any]:
    """What is said of a run alone."""
    facts = dict(run.facts)
    parameters, versions = facts.pop('parameters', {}), facts.pop('versions', {})
    facts |= {f'parameters, {part}': f'{number:,}' for part, number in parameters.items()}
    return dict(
        name=run.name,
        folder=str(run.folder),
        pictures=[picture for path in run.pictures if (picture := _picture(path))],
        tables=[_validations(group, run) for group in groups([run])],
        facts=facts | versions,
        config=run.config,
    )


def _validations(group: Group, run: Run) -> Table:
    validations = group.of(run)
    rows = [[f'{line["iter"]:,}', *_values(group, line)] for line in validations]
    title = f'{group.title}, all {len(rows)} validations'
    return dict(title=title, head=['iteration', *group.labels.values()], rows=rows)


def _values(group: Group, line: Line) -> list[str]:
    return [_text(line.get(name), group.digits) for name in group.labels]


def _picture(path: Path) -> tuple[str, str] | None:
    """Name and data of a picture that is small enough for a page; None if it is damaged."""
    file = io.BytesIO()
    try:
        with Image.open(path) as image:
            image = image.convert('RGB')
            image.thumbnail(PICTURE_SIZE)
            image.save(file, 'JPEG', quality=JPEG_QUALITY)
    except Exception:  # of PIL's many decoders
        return None
    return path.stem, _uri(file.getvalue(), 'jpeg')


def _uri(data: bytes, kind: str) -> str:
    return f'data:image/{kind};base64,{base64.b64encode(data).decode()}'


def _text(value: float | None, digits: int) -> str:
    if value is None:
        return MISSING
    if math.isnan(value):
        return 'not finite'
    return f'{value:.{digits}f}' if value == 0 or abs(value) >= 10**-digits else f'{value:.2e}'


def _moment(seconds: float) -> str:
    return time.strftime('%Y-%m-%d %H:%M', time.localtime(seconds))
