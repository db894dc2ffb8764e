#!/usr/bin/env python3
"""Draw the built-in shapes dataset, in COCO's and in ADE20k's layout."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('root', help='the folder to create, such as data/shapes')
    parser.add_argument(
        '--seed', type=int, default=0, help='a different seed draws different images'
    )
    parser.add_argument(
        '--bands',
        type=cli.positive,
        default=3,
        help='write TIFF images that spread the colors over this many bands',
    )
    parser.add_argument(
        '--mosaic',
        type=cli.positive,
        metavar='N',
        help='draw instead one large image of N x N drawings of 160 pixels, with annotations',
    )
    args = parser.parse_args()

    with cli.imports():
        from xcit_mm.datasets.mosaic import make_mosaic
        from xcit_mm.datasets.shapes import ShapesSpec, make_shapes
    if args.mosaic:
        make_mosaic(args.root, args.mosaic, args.seed, args.bands)
        print(f'{args.root}: drawn')
        return
    drawn = make_shapes(args.root, ShapesSpec(seed=args.seed, bands=args.bands))
    print(f'{args.root}: {"drawn" if drawn else "already there"}')


if __name__ == '__main__':
    cli.run_tool(main)
