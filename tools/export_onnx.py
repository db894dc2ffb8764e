#!/usr/bin/env python3
"""Write a backbone, segmentor or Mask R-CNN as an ONNX file that takes images of any size."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

PARTS = ('model', 'backbone')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog='The file is written only if onnxruntime computes from it what PyTorch does, at '
        'three sizes.',
    )
    parser.add_argument('config', help='config file')
    parser.add_argument(
        'checkpoint',
        nargs='?',
        help='file or URL of a released model or of a run of this config (default: random weights)',
    )
    parser.add_argument('--out', metavar='FILE', required=True, help='ONNX file to write')
    parser.add_argument(
        '--part',
        choices=PARTS,
        default='model',
        help='the whole model, or only the maps of its backbone',
    )
    cli.add_options_argument(parser)
    cli.add_trust_argument(parser)
    args = parser.parse_args()

    with cli.imports():
        from xcit_mm.export import export_onnx
    if args.checkpoint is None:
        print('No checkpoint: the weights of the file are random.')
    print('Exporting, which takes a minute or two ...', flush=True)
    exported = export_onnx(
        args.config,
        args.checkpoint,
        args.out,
        args.part,
        args.cfg_options,
        args.trust_checkpoint,
    )
    for name, shape in exported.shapes.items():
        print(f'{name:<10}({", ".join(shape)})')
    for (batch, height, width), error in exported.errors.items():
        print(f'{batch} x {height}x{width}: relative error against PyTorch {error:.1e}')
    if exported.objects is not None:
        print(f'{exported.objects} objects were compared')
    print(f'Written: {exported.path}, {exported.path.stat().st_size / 1e6:.1f} MB')


if __name__ == '__main__':
    cli.run_tool(main)
