#!/usr/bin/env python3
"""Export a detector, a segmentor or a backbone to a file for ONNX Runtime, OpenVINO or PyTorch."""

import argparse
import shlex
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

FORMATS = ('onnx', 'openvino', 'torch', 'aotinductor')
PRECISIONS = ('float32', 'float16', 'int8')
PARTS = ('model', 'backbone')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog='The file takes images of any size. It is written only if its results match those '
        'of PyTorch: for drawn images of three sizes, or in int8 for the images of --calibrate.',
    )
    parser.add_argument(
        'config', help='config file, or a model on the hub (hf://owner/name) or in a folder'
    )
    parser.add_argument(
        'checkpoint',
        nargs='?',
        help='file or URL of a released model or of a run of this config (default: the weights '
        'of a model on the hub or in a folder, otherwise random weights)',
    )
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument(
        '--out', metavar='FILE', help='file to write: .onnx, .xml (OpenVINO) or .pt2'
    )
    target.add_argument(
        '--folder',
        metavar='DIR',
        help='new folder to write: the ONNX file, a program that predicts with it without xcit_mm '
        'and PyTorch, and a test picture with its expected result',
    )
    parser.add_argument('--format', choices=FORMATS, default='onnx')
    parser.add_argument('--precision', choices=PRECISIONS, default='float32')
    parser.add_argument(
        '--part',
        choices=PARTS,
        default='model',
        help='the whole model, or only the maps of its backbone',
    )
    parser.add_argument(
        '--calibrate',
        nargs='+',
        default=(),
        metavar='IMAGES',
        help='images or folders that calibrate int8; at most 100 images, evenly spread, are used',
    )
    parser.add_argument(
        '--verify',
        nargs='+',
        default=(),
        metavar='IMAGES',
        help='images or folders for which the results must match as well; at most 100 images, '
        'evenly spread, are used',
    )
    parser.add_argument(
        '--gather',
        action='store_true',
        help='use gather operators in the deformable attention of DINO, Deformable DETR and '
        'Mask2Former, for runtimes without GridSample',
    )
    parser.add_argument(
        '--deepness',
        type=int,
        metavar='TILE',
        help='write a file for Deepness, a QGIS plugin: for square tiles with this side in '
        'pixels, and with the metadata that Deepness reads',
    )
    parser.add_argument(
        '--resolution',
        type=float,
        metavar='METERS',
        help='with --deepness, the resolution at which maps are predicted, in meters per pixel',
    )
    cli.add_options_argument(parser)
    cli.add_trust_argument(parser)
    args = parser.parse_args()
    if args.folder is not None and (args.format, args.part, args.deepness) != (
        'onnx',
        'model',
        None,
    ):
        parser.error('--folder is for whole models in ONNX without --deepness: use --out')

    with cli.imports():
        from xcit_mm.apps.export import ExportSettings, export, export_folder
    # An exit removes unfinished files on its way.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(cli.SIGNALED + number))
    if cli.has_weights(args.config) and args.checkpoint is None:
        args.checkpoint = args.config
    if args.checkpoint is None:
        print('No checkpoint: the weights of the file are random.')
    wait = 'several minutes' if args.precision == 'int8' else 'a minute or two'
    print(f'Exporting takes {wait} ...', flush=True)
    names = ('format', 'precision', 'part', 'calibrate', 'verify', 'gather', 'deepness')
    settings = ExportSettings(**{name: getattr(args, name) for name in (*names, 'resolution')})
    write, target = (export, args.out) if args.folder is None else (export_folder, args.folder)
    exported = write(
        args.config, args.checkpoint, target, settings, args.cfg_options, args.trust_checkpoint
    )
    print('outputs:', *exported.outputs)
    for name, difference in exported.differences.items():
        objects = '' if difference.objects is None else f', {difference.objects} objects'
        error = f'a relative error of {difference.error:.1e}'
        print(f'{name}: differs from PyTorch by {error}{objects}')
    print(f'Written: {Path(target)}, {exported.size / 1e6:.1f} MB')
    if args.folder is not None:
        print(f'Next: python {shlex.quote(str(Path(target, "predict.py")))} IMAGE')


if __name__ == '__main__':
    cli.run_tool(main)
