#!/usr/bin/env python3
"""Measure time and memory of backbones, whole models, training steps and data loaders."""

import argparse
import os
import sys
from dataclasses import fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

TASKS = ('backbone', 'training', 'detector', 'segmentor', 'step', 'loader')
NAMES = (
    'xcit_mm_ARCH_PATCH, timm_ARCH_PATCH (as in xcit_mm_s12_16) or resnet50, deit_s, swin_t, '
    'pvtv2_b2, convnext_t; whole models: xcit_mm_ARCH_PATCH, resnet50, swin_t, convnext_t or a '
    'config file'
)
STEP_NAMES = (
    'of step and loader: xcit_mm_ARCH_PATCH, resnet50, swin_t or convnext_t in Mask R-CNN, with '
    '+sem_fpn in Semantic FPN, on drawn images, or a config file with its data; +stock: with the '
    'classes and the settings of mmdet or mmseg'
)
MODELS = ['xcit_mm_s12_16', 'timm_s12_16', 'resnet50', 'deit_s', 'swin_t', 'pvtv2_b2', 'convnext_t']
SIZES = [(n, n) for n in (224, 384, 512, 1024)]


def size(text: str) -> tuple[int, int]:
    """Parse 512 or 800x1344."""
    height, _, width = text.partition('x')
    return int(height), int(width or height)


def parser_of_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--models',
        nargs='+',
        metavar='NAME',
        help=f'{NAMES}; the suffix +compile compiles the model (default: {" ".join(MODELS)}); '
        f'{STEP_NAMES}',
    )
    parser.add_argument(
        '--sizes',
        nargs='+',
        type=size,
        metavar='SIZE',
        help='image sizes in pixels, such as 512 or 800x1344 (default: the sizes of the paper, of '
        'step and loader 800x1344)',
    )
    parser.add_argument(
        '--what',
        nargs='+',
        choices=TASKS,
        default=TASKS[:2],
        help='backbone: a forward pass; training: a forward and a backward pass of a backbone, or '
        'of the detector of a config file; detector: predictions of Mask R-CNN; segmentor: '
        'predictions of Semantic FPN; step: whole training steps, with the loader, the optimizer '
        'and the hooks, and what the GPU waits for; loader: the data loader of a training alone '
        f'(default: {" ".join(TASKS[:2])})',
    )
    parser.add_argument('--batch-size', type=cli.positive, help='default: 1, of a config its own')
    parser.add_argument(
        '--device', help='cpu, cuda or cuda:N (default: cpu); step takes the GPU if there is one'
    )
    parser.add_argument(
        '--dtypes',
        nargs='+',
        choices=cli.DTYPES[:-1],
        metavar='DTYPE',
        help='float32, bfloat16, float16 (default: float32)',
    )
    parser.add_argument(
        '--repeats',
        type=cli.positive,
        help='measurements per model; the median is reported (default: 5, of loader 3)',
    )
    parser.add_argument(
        '--steps',
        type=cli.positive,
        help='steps or batches in a measurement (default: 10 steps of step, 20 batches of loader)',
    )
    parser.add_argument(
        '--workers', nargs='+', type=int, metavar='N', help='of loader (default: 0 1 2 4 8)'
    )
    parser.add_argument('--threads', type=int, help='CPU threads')
    cli.add_options_argument(parser)
    parser.add_argument('--out', type=Path, default=Path('work_dirs/benchmark'), metavar='DIR')
    return parser


def main() -> None:
    parser = parser_of_arguments()
    args = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    out, what, options = (args.pop(name) for name in ('out', 'what', 'cfg_options'))
    if options:
        args['options'] = options
    alone = {'step', 'loader'} & set(what)
    if alone and len(what) > 1:
        parser.error(f'--what {" ".join(what)}: {" and ".join(alone)} measures alone')
    (kind,) = alone or {'model'}
    args.setdefault('models', MODELS if kind == 'model' else MODELS[:1])
    if kind == 'model':
        args = {'sizes': SIZES, 'what': what, **args}

    os.environ.setdefault('KINETO_LOG_LEVEL', '99')  # read when PyTorch is imported
    with cli.imports():
        from benchmarks import loaders, measure, report, steps
        from xcit_mm.base.files import require_writable
    settings_class, run, describe = {
        'model': (measure.Settings, measure.measure, report.describe),
        'step': (steps.StepSettings, steps.measure_steps, report.describe_step),
        'loader': (loaders.LoaderSettings, loaders.measure_loaders, report.describe_loader),
    }[kind]
    unused = args.keys() - {field.name for field in fields(settings_class)}
    if unused:
        names = ' and '.join(f'--{name.replace("_", "-")}' for name in sorted(unused))
        parser.error(
            f'--what {" ".join(what)} has no {names}'.replace('--options', '--cfg-options')
        )
    settings = settings_class(
        **{name: tuple(v) if isinstance(v, list) else v for name, v in args.items()}
    )
    require_writable(out)
    path = out / 'benchmark.json'
    measurements = []
    if kind == 'step':
        print('The trainings alternate: the results of a size come together.', file=sys.stderr)
    for measurement in run(settings):
        measurements.append(measurement)  # written at once: an interruption loses nothing
        report.write_json(measurements, settings, path)
        print(describe(measurement), flush=True)
    if kind == 'step':
        print(f'\n{report.step_table(measurements)}')
    elif kind == 'loader':
        print(f'\n{report.loader_table(measurements)}')
    for task in what if kind == 'model' else ():
        print(f'\n{report.table(measurements, task)}')
    print(f'\nWritten: {path}')


if __name__ == '__main__':
    cli.run_tool(main)
