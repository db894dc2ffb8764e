"""Counts as a table and as JSON."""

import json
from dataclasses import asdict
from pathlib import Path

from ..files import write_whole
from .counting import Count


def table(count: Count) -> str:
    """Lay out a count in millions of parameters and billions of multiply-adds."""
    rows = [('', 'parameters', 'multiply-adds', 'computed')]
    for part in (*count.parts, count.total):
        products = (f'{number / 1e9:.2f} G' for number in (part.multiply_adds, part.computed))
        rows.append((part.name, f'{part.parameters / 1e6:.2f} M', *products))
    width = max(len(name) for name, *_ in rows)
    lines = [f'{name:<{width}}{"".join(f"{cell:>15}" for cell in cells)}' for name, *cells in rows]
    lines.insert(-1, '-' * len(lines[0]))
    title = '{}, an image of {}x{} pixels'.format(count.model, *count.size)
    return '\n'.join([title, *lines, *count.notes])


def write_json(path: Path, count: Count) -> None:
    """Write a count as JSON."""
    with write_whole(path, 'w') as file:
        json.dump({**asdict(count), 'total': asdict(count.total)}, file, indent=2)
