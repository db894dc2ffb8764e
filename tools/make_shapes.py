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
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        '--bands',
        type=cli.positive,
        default=3,
        help='write TIFF images that spread the colors over this many bands',
    )
    kind.add_argument(
        '--classes',
        action='store_true',
        help='draw instead one shape an image, in a folder for each of ten classes',
    )
    parser.add_argument('--num-train', type=cli.positive, help='the number of training images')
    parser.add_argument('--num-val', type=cli.positive, help='the number of validation images')
    args = parser.parse_args()
    values = dict(num_train=args.num_train, num_val=args.num_val, seed=args.seed)
    values = {name: value for name, value in values.items() if value is not None}

    with cli.imports():
        from xcit_mm.data.drawings.shape_classes import ClassesSpec, make_classes
        from xcit_mm.data.drawings.shapes import ShapesSpec, make_shapes
    if args.classes:
        drawn = make_classes(args.root, ClassesSpec(**values))
    else:
        drawn = make_shapes(args.root, ShapesSpec(bands=args.bands, **values))
    print(f'{args.root}: {"drawn" if drawn else "already there"}')


if __name__ == '__main__':
    cli.run_tool(main)
