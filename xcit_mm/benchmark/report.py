"""The table and the JSON file of a benchmark."""

import platform
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from .. import files
from .measure import Measurement, Settings

MIB = 2**20


def table(measurements: Sequence[Measurement], what: str) -> str:
    """Lay out the time per image and the peak memory of a task as a Markdown table."""
    cells = {(_name(m), m.size): _cell(m) for m in measurements if m.what == what}
    models, sizes = (list(dict.fromkeys(key)) for key in zip(*cells, strict=True))
    rows = [
        [f'{what}: ms per image / peak MiB beyond the weights', *(f'{h}x{w}' for h, w in sizes)]
    ]
    rows += [[model, *(cells[model, size] for size in sizes)] for model in models]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ['-' * width for width in widths])
    lines = (' | '.join(map(str.ljust, row, widths)) for row in rows)
    return '\n'.join(f'| {line} |' for line in lines)


def describe(measurement: Measurement) -> str:
    """Describe a measurement in a line."""
    size = '{}x{}'.format(*measurement.size)
    return f'{measurement.what}, {size}, {_name(measurement)}: {_cell(measurement)}'


def _name(measurement: Measurement) -> str:
    return f'{measurement.model}, {measurement.dtype}'


def _cell(measurement: Measurement) -> str:
    if measurement.seconds is None:
        return 'out of memory'
    return f'{measurement.seconds * 1e3:.1f} / {measurement.peak_bytes / MIB:.0f}'


def write_json(measurements: Sequence[Measurement], settings: Settings, path: Path) -> None:
    """Write the machine, the settings and the measurements in seconds and bytes."""
    cpuinfo = Path('/proc/cpuinfo')  # on Linux
    text = cpuinfo.read_text(encoding='utf-8') if cpuinfo.exists() else ''
    processor = re.search(r'model name\s*: (.*)', text)
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
    files.write_json(path, content)
