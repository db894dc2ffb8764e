#!/usr/bin/env python3
"""Draw what the configs of heights, large images and whole images are tried with."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(dest='kind', required=True, metavar='KIND')
    mosaic = kinds.add_parser(
        'mosaic', help='one large image of N x N drawings of shapes of 160 pixels, with annotations'
    )
    heights = kinds.add_parser(
        'heights', help='cones, domes and boxes on hills, with the height of each pixel'
    )
    scene = kinds.add_parser(
        'height-scene', help='one image of such hills with sides of N times 160 pixels'
    )
    context = kinds.add_parser(
        'context',
        help='images of N x N drawings of shapes, in which a key in one corner decides the class',
    )
    for kind in (mosaic, heights, scene, context):
        kind.add_argument('root', help='the folder to create, such as data/mosaic')
        kind.add_argument('--seed', type=int, help='a different seed draws different images')
    for kind, default in ((mosaic, 8), (scene, 8), (context, 3)):
        kind.add_argument(
            '--columns',
            type=cli.positive,
            default=default,
            metavar='N',
            help='default: %(default)s',
        )
    for kind in (heights, context):
        kind.add_argument('--num-train', type=cli.positive, help='the number of training images')
        kind.add_argument('--num-val', type=cli.positive, help='the number of validation images')
    mosaic.add_argument('--bands', type=cli.positive, help='spread the colors over this many bands')
    values = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    kind, root = values.pop('kind'), values.pop('root')

    with cli.imports():
        from benchmarks.context import ContextSpec, make_context
        from benchmarks.mosaic import make_mosaic
        from benchmarks.terrain import HeightsSpec, make_height_scene, make_heights
    if kind == 'mosaic':
        make_mosaic(root, **values)
    elif kind == 'heights':
        make_heights(root, HeightsSpec(**values))
    elif kind == 'height-scene':
        make_height_scene(root, **values)
    else:
        make_context(root, ContextSpec(**values))
    print(f'{root}: drawn')


if __name__ == '__main__':
    cli.run_tool(main)
