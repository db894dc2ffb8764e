"""Counts for reading, and as JSON."""

import json
from dataclasses import asdict
from pathlib import Path

from ..files import write_whole
from .counting import Count

GIGA, MEGA = 1e9, 1e6
HEADER = ('', 'parameters', 'multiply-adds', 'computed')


def table(count: Count) -> str:
    """Lay a count out for reading, in millions of parameters and billions of multiply-adds."""
    rows = [
        (p.name, f'{p.parameters / MEGA:.2f} M', *(f'{n / GIGA:.2f} G' for n in products))
        for p in (*count.parts, count.total)
        for products in [(p.multiply_adds, p.computed)]
    ]
    width = max(len(name) for name, *_ in rows)
    lines = [
        f'{name:<{width}}' + ''.join(f'{cell:>15}' for cell in cells)
        for name, *cells in (HEADER, *rows)
    ]
    lines.insert(-1, '-' * len(lines[0]))
    height, width = count.size
    return '\n'.join([f'{count.model}, an image of {height}x{width} pixels', *lines, *count.notes])


def write_json(path: Path, count: Count) -> None:
    """Write a count, whole or not at all: parameters and multiply-adds as they are."""
    with write_whole(path, 'w') as file:
        json.dump({**asdict(count), 'total': asdict(count.total)}, file, indent=2)
