"""What a training changes in a config, as text: the command ``xcit config``."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from .adapt import adapt, adapt_for_training, fit_loaders
from .load import READ, load_config
from .replacements import Replaced, Replacement, replace_classes

HEADER = Replacement('in the config', 'runs', 'which')


def show(config: str | Path, options: Mapping[str, Any] | None = None, full: bool = False) -> str:
    """Return what a run on this machine changes in a config, and why.

    Args:
        config: See :func:`~.load.load_config`.
        options: See :func:`~.load.load_config`.
        full: Whether to return the whole config as it runs, with the changes as comments.
    """
    cfg = load_config(config, options)
    replaced = [item for item in replace_classes(cfg) if item.place.split('.')[0] in READ]
    trains = cfg.get('train_dataloader') is not None
    notes = adapt_for_training(cfg, options) if trains else adapt(cfg)
    notes += fit_loaders(cfg)
    parts = [table(replaced)] if replaced else ['The config names the classes that run.']
    text = '\n'.join([*parts, *notes])
    return f'{indent(text, "# ", lambda line: True)}\n{cfg.pretty_text}' if full else text


def table(replaced: Sequence[Replaced]) -> str:
    """Return a row for each class that was replaced, followed by the places where it was."""
    places = defaultdict(list)
    for place, row in replaced:
        places[row].append(place)
    rows = [HEADER, *places]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = []
    for row in rows:
        lines.append(f'{row.name:<{first}}  {row.replacement:<{second}}  {row.reason}')
        lines += [f'    {place}' for place in places.get(row, ())]
    return '\n'.join(lines)
