#!/usr/bin/env python3
"""Measure the features of a checkpoint: k-NN and a linear classifier on labeled images."""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

UNREADABLE = 1  # exit code
MAX_WORKERS = 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog='Exit code: 0; 1 if an image is unreadable; 2 for invalid input.',
    )
    parser.add_argument('checkpoint', help='file, URL, hf://owner/name or timm://NAME of any XCiT')
    parser.add_argument(
        'train', type=Path, help='folder with a folder of labeled images for each class'
    )
    parser.add_argument(
        'val', type=Path, help='folder with the same classes, whose images are classified'
    )
    parser.add_argument(
        '--size',
        type=cli.positive,
        help='image size in pixels (default: the one in the checkpoint, or 224)',
    )
    parser.add_argument(
        '--sample', type=cli.positive, metavar='N', help='use N images of each folder, at random'
    )
    parser.add_argument(
        '--mean',
        nargs='+',
        type=float,
        metavar='NUMBER',
        help='mean of each channel (default: those in the checkpoint, or of ImageNet)',
    )
    parser.add_argument(
        '--std', nargs='+', type=float, metavar='NUMBER', help='standard deviation of each channel'
    )
    parser.add_argument('--batch-size', type=cli.positive, default=64)
    parser.add_argument(
        '--workers',
        type=int,
        default=min(os.cpu_count() or 1, MAX_WORKERS),
        help='processes that read images; 0: only this one (default: %(default)s)',
    )
    parser.add_argument('--device', help='cpu, cuda or cuda:N (default: a GPU if there is one)')
    cli.add_dtype_argument(parser)
    parser.add_argument('--out', type=Path, metavar='FILE', help='write the result as JSON')
    cli.add_trust_argument(parser)
    args = parser.parse_args()

    with cli.imports():
        from xcit_mm.apps.probe import report_probe
        from xcit_mm.base.device import dtype_name
        from xcit_mm.base.errors import printable
        from xcit_mm.base.files import require_writable_file, write_json
        from xcit_mm.predict.embedder import Embedder
    if args.out is not None:
        require_writable_file(args.out)
    embedder = Embedder(
        args.checkpoint,
        args.device,
        args.dtype,
        args.size,
        args.trust_checkpoint,
        args.mean,
        args.std,
    )
    what = 'class tokens' if embedder.has_token else 'means of the last map (no class attention)'
    print(
        f'{embedder.checkpoint}: {embedder.description["model"]}, {what}, images of '
        f'{embedder.description["size"]} pixels on {embedder.device} in '
        f'{dtype_name(embedder.dtype)}',
        flush=True,
    )
    text, content = report_probe(
        embedder, args.train, args.val, args.sample, args.batch_size, args.workers
    )
    print(printable(text))  # names of files
    if args.out is not None:
        write_json(args.out, content)
    if content['bad']:
        sys.exit(UNREADABLE)


if __name__ == '__main__':
    cli.run_tool(main)
