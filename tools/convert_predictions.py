#!/usr/bin/env python3
"""Convert the objects of predictions.json to files that an annotation tool opens or imports."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

SHAPE_KINDS = ('boxes', 'polygons', 'masks')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('tool', choices=('cvat', 'labelme', 'labelstudio'))
    parser.add_argument(
        'predictions',
        help='the predictions.json or output folder of tools/infer.py for a detector, or another '
        "file in COCO's format",
    )
    parser.add_argument(
        '--images',
        metavar='DIR',
        default='.',
        help='the folder that the image paths in the file are relative to; default: the current '
        'folder',
    )
    parser.add_argument('--out', metavar='DIR', required=True, help='the folder to write to')
    parser.add_argument(
        '--shapes',
        choices=SHAPE_KINDS,
        default='masks',
        help='write boxes only; or write the outlines of masks as polygons, which are easier to '
        'edit but not exact; default: masks, and polygons or boxes for objects without a mask',
    )
    parser.add_argument(
        '--score-thr',
        type=float,
        default=0,
        metavar='SCORE',
        help='leave out objects with a lower score; default: %(default)s',
    )
    parser.add_argument(
        '--image-url',
        metavar='URL',
        help='for Label Studio, the start of the image addresses, before the names of the images; '
        'default: /data/local-files/?d=',
    )
    args = parser.parse_args()
    if args.image_url is not None and args.tool != 'labelstudio':
        parser.error(f'--image-url {args.image_url}: only for labelstudio')

    with cli.imports():
        from xcit_mm.apps.annotation_tools.convert import convert_predictions
    convert_predictions(
        args.tool,
        args.predictions,
        args.out,
        folder=args.images,
        kind=args.shapes,
        score_thr=args.score_thr,
        image_url=args.image_url,
    )


if __name__ == '__main__':
    cli.run_tool(main)
