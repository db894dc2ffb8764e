#!/usr/bin/env python3
"""Evaluate a checkpoint: COCO's AP for detectors, IoU for segmentors, errors for heights."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    cli.add_run_arguments(parser)
    parser.add_argument(
        'checkpoint',
        help='file, URL or hf://owner/name of a released model, or a checkpoint of this config',
    )
    parser.add_argument('--show-dir', help='draw the predictions over the images into this folder')
    parser.add_argument(
        '--errors',
        metavar='DIR',
        help='write confused classes and the costs of errors to this folder, as tables and '
        'pictures',
    )
    parser.add_argument('--out', help='write the metrics to this JSON file')
    parser.add_argument(
        '--tta',
        action='store_true',
        help='test-time augmentation: merge the predictions for several sizes, plain and mirrored',
    )
    cli.add_dtype_argument(parser)
    cli.add_compile_argument(parser)
    args = parser.parse_args()

    with cli.imports():
        from xcit_mm.train import test
    test(
        args.config,
        args.checkpoint,
        work_dir=args.work_dir,
        show_dir=args.show_dir,
        errors_dir=args.errors,
        out=args.out,
        launcher=args.launcher,
        trust_checkpoint=args.trust_checkpoint,
        options=args.cfg_options,
        tta=args.tta,
        dtype=args.dtype,
        compiled=args.compiled,
    )


if __name__ == '__main__':
    cli.run_tool(main)
