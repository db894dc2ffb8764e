"""The table, the JSON file and the plots of a benchmark."""

import json
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from ..files import write_whole
from .measure import Measurement, Settings

MIB = 2**20


def table(measurements: Sequence[Measurement], mode: str) -> str:
    """Lay out the time per image and the peak memory of a mode as a Markdown table."""
    cells = {(m.model, m.size): _cell(m) for m in measurements if m.mode == mode}
    models, sizes = (list(dict.fromkeys(key)) for key in zip(*cells, strict=True))
    rows = [[f'{mode}: ms an image / MiB at peak', *(f'{h}x{w}' for h, w in sizes)]]
    rows += [[model, *(cells[model, size] for size in sizes)] for model in models]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ['-' * width for width in widths])
    lines = (' | '.join(map(str.ljust, row, widths)) for row in rows)
    return '\n'.join(f'| {line} |' for line in lines)


def describe(measurement: Measurement) -> str:
    """Describe a measurement in a line."""
    size = '{}x{}'.format(*measurement.size)
    return f'{measurement.mode}, {size}, {measurement.model}: {_cell(measurement)}'


def _cell(measurement: Measurement) -> str:
    if measurement.seconds is None:
        return 'out of memory'
    return f'{measurement.seconds * 1e3:.1f} / {measurement.peak_bytes / MIB:.0f}'


def write_json(measurements: Sequence[Measurement], settings: Settings, path: Path) -> None:
    """Write the machine, the settings and the measurements in seconds and bytes."""
    cpuinfo = Path('/proc/cpuinfo')  # on Linux
    processor = re.search(r'model name\s*: (.*)', cpuinfo.read_text() if cpuinfo.exists() else '')
    on_gpu = settings.device.startswith('cuda')
    environment = {
        **asdict(settings),
        'processor': processor[1] if processor else platform.processor(),
        'gpu': torch.cuda.get_device_name(settings.device) if on_gpu else None,
        'threads': torch.get_num_threads(),
        'python': platform.python_version(),
        'torch': torch.__version__,
        'system': platform.platform(),
    }
    content = {'environment': environment, 'measurements': [asdict(m) for m in measurements]}
    with write_whole(path, 'w') as file:
        json.dump(content, file, indent=2)


def draw(measurements: Sequence[Measurement], mode: str, folder: Path) -> list[Path]:
    """Plot the time (the paper's figure D.1) and the memory (figure 2) over the image size.

    Returns the paths of ``<mode>_time.png`` and ``<mode>_memory.png``.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    quantities = {
        'time': ('milliseconds an image', lambda m: m.seconds * 1e3),
        'memory': ('peak memory beyond the weights, MiB', lambda m: m.peak_bytes / MIB),
    }
    measured = [m for m in measurements if m.mode == mode and m.seconds is not None]
    paths = []
    for quantity, (label, value) in quantities.items():
        figure = Figure(figsize=(7, 5), layout='constrained')
        axes = figure.subplots()
        for model in dict.fromkeys(m.model for m in measured):
            points = sorted((m.size[0] * m.size[1], value(m)) for m in measured if m.model == model)
            width = 2.5 if model.startswith('xcit_mm') else 1.2
            axes.plot(*zip(*points, strict=True), 'o-', label=model, lw=width)
        sizes = {m.size[0] * m.size[1]: '{}x{}'.format(*m.size) for m in measured}
        axes.set(xscale='log', yscale='log', xlabel='image size, pixels', ylabel=label, title=mode)
        axes.set_xticks(list(sizes), list(sizes.values()), rotation=45)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter('{x:g}')
        axes.minorticks_off()
        axes.grid(alpha=0.3, which='both')
        if measured:
            axes.legend()
        paths.append(folder / f'{mode}_{quantity}.png')
        with write_whole(paths[-1]) as file:
            figure.savefig(file, format='png', dpi=120)
    return paths
