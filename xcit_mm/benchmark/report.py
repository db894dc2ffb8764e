"""A benchmark's table, its JSON file and its plots."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..files import write_whole
from .measure import OUT_OF_MEMORY, Measurement, Settings, environment

MIB = 2**20


def table(measurements: Sequence[Measurement], mode: str) -> str:
    """The measurements of a mode in Markdown: time for an image and peak memory."""
    rows = [m for m in measurements if m.mode == mode]
    sizes = list(dict.fromkeys(m.size for m in rows))
    models = list(dict.fromkeys(m.model for m in rows))
    by_cell = {(m.model, m.size): m for m in rows}
    lines = [
        [f'{mode}: ms an image / MiB at peak', *(f'{h}x{w}' for h, w in sizes)],
        *([model, *(_cell(by_cell[model, size]) for size in sizes)] for model in models),
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    padded = [[cell.ljust(n) for cell, n in zip(line, widths, strict=True)] for line in lines]
    padded.insert(1, ['-' * n for n in widths])
    return '\n'.join(f'| {" | ".join(line)} |' for line in padded)


def write_json(measurements: Sequence[Measurement], settings: Settings, path: Path) -> None:
    """Write the machine, the settings and every measurement; seconds and bytes."""
    content = {
        'environment': environment(settings),
        'measurements': [asdict(m) for m in measurements],
    }
    with write_whole(path, 'w') as file:
        json.dump(content, file, indent=2)


def draw(measurements: Sequence[Measurement], mode: str, folder: Path) -> list[Path]:
    """Draw time (the paper's figure D.1) and memory (figure 2) over the image size.

    Returns:
        The two files, ``<mode>_time.png`` and ``<mode>_memory.png``.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    quantities = {
        'time': ('milliseconds an image', lambda m: m.seconds and m.seconds * 1e3),
        'memory': (
            'peak memory beyond the weights, MiB',
            lambda m: m.peak_bytes and m.peak_bytes / MIB,
        ),
    }
    paths = []
    for quantity, (label, value) in quantities.items():
        figure = Figure(figsize=(7, 5), layout='constrained')
        axes = figure.subplots()
        for model in dict.fromkeys(m.model for m in measurements):
            points = sorted(
                (m.size[0] * m.size[1], value(m))
                for m in measurements
                if m.model == model and m.mode == mode and m.seconds is not None
            )
            if points:
                ours = model.startswith('xcit_mm')
                axes.plot(*zip(*points, strict=True), 'o-', label=model, lw=2.5 if ours else 1.2)
        ticks = _apart({m.size[0] * m.size[1]: m.size for m in measurements})
        axes.set_xscale('log')
        axes.set_yscale('log')
        axes.set_xticks(list(ticks), [f'{h}x{w}' for h, w in ticks.values()])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter('{x:g}')
        axes.minorticks_off()
        axes.set_xlabel('image size, pixels')
        axes.set_ylabel(label)
        axes.set_title(mode)
        axes.grid(alpha=0.3, which='both')
        axes.legend()
        paths.append(folder / f'{mode}_{quantity}.png')
        with write_whole(paths[-1]) as file:
            figure.savefig(file, format='png', dpi=120)
    return paths


def _apart(sizes: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Sizes by their pixels, without those whose labels would cover each other."""
    apart: dict[int, tuple[int, int]] = {}
    for pixels in sorted(sizes):
        if not apart or pixels > 1.2 * max(apart):
            apart[pixels] = sizes[pixels]
    return apart


def _cell(measurement: Measurement) -> str:
    if measurement.seconds is None:
        return OUT_OF_MEMORY
    return f'{measurement.seconds * 1e3:.1f} / {measurement.peak_bytes / MIB:.0f}'
