"""A report of runs as one HTML file that needs no network and no other file."""

import base64
import io
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jinja2
from PIL import Image

from ...base.errors import one_line
from ...base.files import write_whole
from .best import best_validation
from .plots import MAIN_METRICS, TITLES, choose_plots, draw
from .reading import Line, Run
from .tables import tables_by_class
from .titles import title

PICTURE_SIZE = 960, 960  # pixels at most
ERRORS_SIZE = 2400, 2400


def write_page(runs: Sequence[Run], path: Path) -> None:
    """Write tables, plots, pictures, configs and versions of one run, or of several to compare.

    The file is replaced as a whole or not at all.
    """
    template = jinja2.Template(
        Path(__file__).with_name('page.html').read_text(encoding='utf-8'),
        autoescape=True,  # names come from logs and configs
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    validations = [validation for run in runs for validation in _last_and_best(run)]
    parts = {label: tables_by_class(line) for label, line in validations}
    plots = {}
    for name, source in choose_plots(runs):
        file = io.BytesIO()
        draw([(name, source)], runs, file, 'svg')
        plots[TITLES.get(name) or title(name)] = _data_uri(file, 'svg+xml')
    page = template.render(
        text=_format,
        metric_title=title,
        drawn=time.strftime('%Y-%m-%d %H:%M'),
        runs=[(run, _errors(run), _pictures(run)) for run in runs],
        overview=[_overview(run) for run in runs],
        validations=validations,
        validation_names=dict.fromkeys(name for _, names in parts.values() for name in names),
        classes=[(label, table) for label, (tables, _) in parts.items() for table in tables],
        plots=plots,
        config_lines=_different_config_lines(runs),
    )
    with write_whole(path) as file:
        file.write(page.encode(errors='replace'))


def _overview(run: Run) -> dict[str, object]:
    parameters = run.info.get('parameters')
    return {
        'run': run.name,
        'iterations': max(line['iter'] for line in (*run.losses[-1:], *run.metrics[-1:])),
        'planned': run.info.get('iterations'),
        'duration': run.info.get('duration'),
        'parameters': parameters.get('all') if isinstance(parameters, dict) else None,
        'losses not finite': sum(math.isnan(line.get('loss', 0)) for line in run.losses),
    }


def _last_and_best(run: Run) -> Iterator[tuple[str, Line]]:
    """Yield the last validation, and the best by the first main metric that the run has."""
    if run.metrics:
        yield f'{run.name}, last', run.metrics[-1]
    for name in MAIN_METRICS:
        best = best_validation(run.metrics, name)
        if best is not None:
            if best[name] != run.metrics[-1].get(name):
                yield f'{run.name}, best', best
            return


def _different_config_lines(runs: Sequence[Run]) -> dict[str, list[bool]]:
    """Return the lines that not all configs have, and which of the runs have them."""
    configs = [dict.fromkeys(run.config.splitlines()) for run in runs]
    lines = {line: [line in config for config in configs] for c in configs for line in c}
    return {line: is_in for line, is_in in lines.items() if not all(is_in)}


def _pictures(run: Run) -> dict[str, str]:
    """Return the pictures by name, small enough for a page."""
    return {path.stem: _embedded(path, PICTURE_SIZE, 'JPEG') for path in run.pictures}


def _errors(run: Run) -> dict[str, str]:
    """Return the pictures of errors by what they count, likewise, and with sharp text."""
    return {path.parent.name: _embedded(path, ERRORS_SIZE, 'PNG') for path in run.errors}


def _embedded(path: Path, size: tuple[int, int], kind: str) -> str:
    """Return a picture as data of a page."""
    file = io.BytesIO()
    with Image.open(path) as image:
        image = image.convert('RGB')
        image.thumbnail(size)
        image.save(file, kind, quality=85)
    return _data_uri(file, kind.lower())


def _data_uri(file: io.BytesIO, kind: str) -> str:
    return f'data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}'


def _format(value: object) -> str:
    if value is None:
        return '-'
    if isinstance(value, float):
        return f'{value:.4g}'
    return f'{value:,}' if isinstance(value, int) else one_line(str(value))
