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
    parser.add_argument(
        '--context',
        type=cli.positive,
        nargs='?',
        const=3,
        metavar='N',
        help='draw large images of N x N drawings instead (default: 3), in which a key in one '
        'corner decides the class of all shapes',
    )
    parser.add_argument(
        '--heights',
        action='store_true',
        help='draw cones, domes and boxes on hills instead, with the height of each pixel. With '
        '--mosaic N, draw one image with sides of N times 160 pixels',
    )
    parser.add_argument(
        '--classes',
        action='store_true',
        help='draw instead one shape an image, in a folder for each of ten classes',
    )
    parser.add_argument('--num-train', type=cli.positive, help='the number of training images')
    parser.add_argument('--num-val', type=cli.positive, help='the number of validation images')
    args = parser.parse_args()
    numbers = dict(num_train=args.num_train, num_val=args.num_val)
    numbers = {name: number for name, number in numbers.items() if number is not None}
    if args.mosaic and (args.context or numbers):
        parser.error('--mosaic draws one image: leave out --context, --num-train and --num-val')
    if args.heights and (args.context or args.bands != 3):
        parser.error('--heights draws other images: leave out --context and --bands')
    if args.classes and (args.mosaic or args.context or args.heights or args.bands != 3):
        parser.error('--classes draws other images: leave out the options of other drawings')
    if args.context and args.bands != 3:
        parser.error('--context draws images with three bands: leave out --bands')

    with cli.imports():
        from xcit_mm.data.drawings.context import ContextSpec, make_context
        from xcit_mm.data.drawings.mosaic import make_mosaic
        from xcit_mm.data.drawings.shape_classes import ClassesSpec, make_classes
        from xcit_mm.data.drawings.shapes import ShapesSpec, make_shapes
        from xcit_mm.data.drawings.terrain import HeightsSpec, make_height_scene, make_heights
    drawn = True
    if args.heights and args.mosaic:
        make_height_scene(args.root, args.mosaic, args.seed)
    elif args.heights:
        make_heights(args.root, HeightsSpec(seed=args.seed, **numbers))
    elif args.classes:
        drawn = make_classes(args.root, ClassesSpec(seed=args.seed, **numbers))
    elif args.mosaic:
        make_mosaic(args.root, args.mosaic, args.seed, args.bands)
    elif args.context:
        make_context(args.root, ContextSpec(columns=args.context, seed=args.seed, **numbers))
    else:
        drawn = make_shapes(args.root, ShapesSpec(seed=args.seed, bands=args.bands, **numbers))
    print(f'{args.root}: {"drawn" if drawn else "already there"}')


if __name__ == '__main__':
    cli.run_tool(main)
