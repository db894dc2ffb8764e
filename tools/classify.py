#!/usr/bin/env python3
"""Compare the ImageNet top-1 accuracy of a classifier with the published figure."""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

NOT_RIGHT = 1  # exit code
MAX_WORKERS = 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog='Exit code: 0; 1 if an image is unreadable or the accuracy is not the published '
        'one; 2 for invalid input.',
    )
    parser.add_argument(
        'checkpoint', help='file, URL, hf://owner/name or timm://NAME of a classifier'
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        'folder', nargs='?', type=Path, help='folder with a subfolder of images for each class'
    )
    what.add_argument(
        '--images',
        nargs='+',
        metavar='FILE',
        help='print the five best classes of these files or URLs',
    )
    parser.add_argument(
        '--size',
        type=cli.positive,
        help='image size in pixels (default: the training size, or 224)',
    )
    parser.add_argument(
        '--sample', type=cli.positive, metavar='N', help='classify N images drawn at random'
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
        from xcit_mm.apps.classification import Classifier
        from xcit_mm.apps.classification.report import report_folder, report_pictures
        from xcit_mm.base.device import dtype_name
        from xcit_mm.base.errors import printable
        from xcit_mm.base.files import require_writable_file, write_json
    if args.out is not None:
        require_writable_file(args.out)
    classifier = Classifier(
        args.checkpoint,
        args.size,
        args.batch_size,
        args.workers,
        args.device,
        args.trust_checkpoint,
        args.dtype,
    )
    print(
        f'{classifier.checkpoint}: {classifier.architecture}, '
        f'{classifier.model.num_classes:,} classes, images of {classifier.size} pixels on '
        f'{classifier.device} in {dtype_name(classifier.dtype)}',
        flush=True,
    )
    if args.images:
        text, content = report_pictures(classifier, args.images)
    else:
        text, content = report_folder(classifier, args.folder, args.sample)
    print(printable(text))  # names of files
    if args.out is not None:
        write_json(args.out, content)
    if content['bad'] or content.get('agrees') is False:
        sys.exit(NOT_RIGHT)


if __name__ == '__main__':
    cli.run_tool(main)
