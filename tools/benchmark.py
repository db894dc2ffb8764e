#!/usr/bin/env python3
"""Measure time and memory of XCiT and other backbones, and of whole models, over image sizes."""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

TASKS = ('backbone', 'training', 'detector', 'segmentor')
NAMES = (
    'xcit_mm_ARCH_PATCH, timm_ARCH_PATCH (as in xcit_mm_s12_16) or resnet50, deit_s, swin_t, '
    'pvtv2_b2, convnext_t; whole models: xcit_mm_ARCH_PATCH, resnet50, swin_t or a config file'
)
MODELS = ['xcit_mm_s12_16', 'timm_s12_16', 'resnet50', 'deit_s', 'swin_t', 'pvtv2_b2', 'convnext_t']


def size(text: str) -> tuple[int, int]:
    """Parse 512 or 800x1344."""
    height, _, width = text.partition('x')
    return int(height), int(width or height)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--models',
        nargs='+',
        default=MODELS,
        metavar='NAME',
        help=f'{NAMES}; the suffix +compile compiles the model (default: %(default)s)',
    )
    parser.add_argument(
        '--sizes',
        nargs='+',
        type=size,
        default=[(n, n) for n in (224, 384, 512, 1024)],
        metavar='SIZE',
        help='image sizes in pixels, such as 512 or 800x1344 (default: the sizes of the paper)',
    )
    parser.add_argument(
        '--what',
        nargs='+',
        choices=TASKS,
        default=TASKS[:2],
        help='backbone: a forward pass; training: a forward and a backward pass of a backbone, or '
        'of the detector of a config file; detector: predictions of Mask R-CNN; segmentor: '
        'predictions of Semantic FPN (default: %(default)s)',
    )
    parser.add_argument('--batch-size', type=cli.positive, default=1)
    parser.add_argument('--device', default='cpu', help='cpu, cuda or cuda:N')
    parser.add_argument(
        '--dtypes',
        nargs='+',
        choices=cli.DTYPES[:-1],
        default=['float32'],
        metavar='DTYPE',
        help='float32, bfloat16, float16 (default: float32)',
    )
    parser.add_argument(
        '--repeats',
        type=cli.positive,
        default=5,
        help='measurements per model; the median is reported',
    )
    parser.add_argument('--threads', type=int, help='CPU threads')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/benchmark'), metavar='DIR')
    args = vars(parser.parse_args())
    out = args.pop('out')

    os.environ.setdefault('KINETO_LOG_LEVEL', '99')  # read when PyTorch is imported
    with cli.imports():
        from xcit_mm import benchmark
        from xcit_mm.files import require_writable
    settings = benchmark.Settings(
        **{name: tuple(v) if isinstance(v, list) else v for name, v in args.items()}
    )
    require_writable(out)
    path = out / 'benchmark.json'
    measurements = []
    for measurement in benchmark.measure(settings):
        measurements.append(measurement)  # written at once: an interruption loses nothing
        benchmark.write_json(measurements, settings, path)
        print(benchmark.describe(measurement), flush=True)
    for what in settings.what:
        print(f'\n{benchmark.table(measurements, what)}')
    print(f'\nWritten: {path}')


if __name__ == '__main__':
    cli.run_tool(main)
