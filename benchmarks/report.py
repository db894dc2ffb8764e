"""The tables and the JSON file of a benchmark."""

import platform
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from xcit_mm.base import files

from .loaders import LoaderMeasurement, LoaderSettings
from .measure import Measurement, Settings
from .steps import StepMeasurement, StepSettings
from .training_steps import PARTS

MIB = 2**20


def table(measurements: Sequence[Measurement], what: str) -> str:
    """Lay out the time per image and the peak memory of a task as a Markdown table."""
    cells = {(_name(m), m.size): _cell(m) for m in measurements if m.what == what}
    models, sizes = (list(dict.fromkeys(key)) for key in zip(*cells, strict=True))
    rows = [
        [f'{what}: ms per image / peak MiB beyond the weights', *(f'{h}x{w}' for h, w in sizes)]
    ]
    rows += [[model, *(cells[model, size] for size in sizes)] for model in models]
    return _lines(rows)


def describe(measurement: Measurement) -> str:
    """Describe a measurement in a line."""
    size = '{}x{}'.format(*measurement.size)
    return f'{measurement.what}, {size}, {_name(measurement)}: {_cell(measurement)}'


def step_table(measurements: Sequence[StepMeasurement]) -> str:
    """Lay out training steps as a Markdown table."""
    host = ' / '.join(PARTS)
    title = ['step', 'ms a step', 'images/s', f'host: {host} ms', 'operators / waits', 'peak MiB']
    return _lines([title, *map(_step_row, measurements)])


def describe_step(measurement: StepMeasurement) -> str:
    """Describe the steps of a training in a line, and what the GPU waited for."""
    if measurement.seconds is None:
        return f'{_step_name(measurement)}: out of memory'
    fastest, slowest = (1e3 * seconds for seconds in measurement.spread)
    return (
        f'{_step_name(measurement)}: {measurement.seconds * 1e3:.1f} ms a step '
        f'({fastest:.1f} to {slowest:.1f}), {measurement.images_per_second:.1f} images a second. '
        f'{_waiting(measurement)}'
    )


def _waiting(measurement: StepMeasurement) -> str:
    if measurement.gpu_seconds is None:
        return (
            f'No GPU was measured; a step starts {measurement.operators} operators, '
            f'{measurement.waits} of which would wait for a GPU or belong to the RoIAlign for CPUs.'
        )
    idle = max(0.0, measurement.seconds - measurement.gpu_seconds)
    loader = min(idle, measurement.host['loader'])
    return (
        f'The GPU worked {measurement.gpu_seconds / measurement.seconds:.0%} of the time, in '
        f'{measurement.kernels} kernels a step. It waited for the loader {loader * 1e3:.1f} ms, '
        f'for Python {(idle - loader) * 1e3:.1f} ms, and Python waited for it '
        f'{measurement.waits} times.'
    )


def _step_row(measurement: StepMeasurement) -> list[str]:
    if measurement.seconds is None:
        return [_step_name(measurement), 'out of memory', *[''] * 4]
    return [
        _step_name(measurement),
        f'{measurement.seconds * 1e3:.1f}',
        f'{measurement.images_per_second:.1f}',
        ' / '.join(f'{measurement.host[part] * 1e3:.1f}' for part in PARTS),
        f'{measurement.operators} / {measurement.waits}',
        f'{measurement.peak_bytes / MIB:.0f}',
    ]


def _step_name(measurement: StepMeasurement) -> str:
    return f'{_data_name(measurement)}, {measurement.dtype}, batch {measurement.batch_size}'


def loader_table(measurements: Sequence[LoaderMeasurement]) -> str:
    """Lay out the images per second of loaders as a Markdown table."""
    title = ['loader', 'workers', 'images/s', 'smallest to largest']
    rows = [
        [
            _data_name(m),
            str(m.workers),
            f'{m.images_per_second:.1f}',
            '{:.1f} to {:.1f}'.format(*m.spread),
        ]
        for m in measurements
    ]
    return _lines([title, *rows])


def describe_loader(measurement: LoaderMeasurement) -> str:
    """Describe a loader in a line."""
    workers = 'worker' if measurement.workers == 1 else 'workers'
    return (
        f'{_data_name(measurement)}, {measurement.workers} {workers}: '
        f'{measurement.images_per_second:.1f} images a second'
    )


def _data_name(measurement: StepMeasurement | LoaderMeasurement) -> str:
    size = measurement.size
    return f'{measurement.model}, ' + ('its own data' if size is None else '{}x{}'.format(*size))


def _lines(rows: list[list[str]]) -> str:
    """Lay out rows as a Markdown table, the first of which is its title."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows = [rows[0], ['-' * width for width in widths], *rows[1:]]
    lines = (' | '.join(map(str.ljust, row, widths)) for row in rows)
    return '\n'.join(f'| {line} |' for line in lines)


def _name(measurement: Measurement) -> str:
    return f'{measurement.model}, {measurement.dtype}'


def _cell(measurement: Measurement) -> str:
    if measurement.seconds is None:
        return 'out of memory'
    return f'{measurement.seconds * 1e3:.1f} / {measurement.peak_bytes / MIB:.0f}'


def write_json(
    measurements: Sequence[Measurement | StepMeasurement | LoaderMeasurement],
    settings: Settings | StepSettings | LoaderSettings,
    path: Path,
) -> None:
    """Write the machine, the settings and the measurements in seconds and bytes."""
    cpuinfo = Path('/proc/cpuinfo')  # on Linux
    text = cpuinfo.read_text(encoding='utf-8') if cpuinfo.exists() else ''
    processor = re.search(r'model name\s*: (.*)', text)
    on_gpu = settings.device.startswith('cuda')
    environment = {
        **asdict(settings),
        'sizes': list(dict.fromkeys(m.size for m in measurements if m.size is not None)),
        'processor': processor[1] if processor else platform.processor(),
        'gpu': torch.cuda.get_device_name(settings.device) if on_gpu else None,
        'threads': torch.get_num_threads(),
        'python': platform.python_version(),
        'torch': torch.__version__,
        'system': platform.platform(),
    }
    content = {'environment': environment, 'measurements': [asdict(m) for m in measurements]}
    files.write_json(path, content)
