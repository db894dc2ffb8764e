#!/usr/bin/env python3
"""Run a model on images, folders, URLs or videos, and write its predictions."""

import argparse
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

PART_FAILED = 1  # the exit code
SCORE_THR = 0.3


def _range(text: str) -> tuple[float, ...]:
    try:
        low, high = map(float, text.split(','))
    except ValueError:
        raise argparse.ArgumentTypeError(f'{text} is not LOW,HIGH, such as 0,10000') from None
    return low, high


def _options(kind: type, args: argparse.Namespace) -> Any:
    """Return the options of a dataclass: what was typed, and its defaults."""
    values = {field.name: getattr(args, field.name) for field in fields(kind)}
    return kind(**{name: value for name, value in values.items() if value is not None})


def main() -> None:
    parser = argparse.ArgumentParser(
        usage='%(prog)s [-h] config [checkpoint] input [input ...] --out DIR [options]',
        description=__doc__,
        epilog='Exit code: 0; 1 if some inputs could not be predicted; 2 if none could.',
    )
    parser.add_argument(
        'config', help='a config file; or a model on the hub (hf://owner/name) or in a folder'
    )
    # One argument, because argparse cannot tell where an optional one ends.
    parser.add_argument(
        'inputs',
        nargs='+',
        metavar='[CHECKPOINT] INPUT',
        help='first, for a config file, the file or URL of a released model or of a '
        'checkpoint of this config; then images, folders with images and videos at any depth, '
        'patterns such as "photos/*.jpg", URLs of images, or videos',
    )
    parser.add_argument('--out', metavar='DIR', required=True, help='the folder to write to')
    parser.add_argument(
        '--batch-size',
        type=int,
        metavar='N',
        help='the number of images, or of slices of a large image, that are predicted together; '
        'default: 1 image, or up to 8 slices of 256 pixels or less',
    )
    parser.add_argument(
        '--score-thr',
        type=float,
        default=SCORE_THR,
        metavar='SCORE',
        help=f'draw and write objects with at least this score; default: {SCORE_THR}',
    )
    parser.add_argument(
        '--full-size',
        action='store_true',
        help='predict images at their own size instead of the size of the config',
    )
    large = parser.add_argument_group('images that do not fit into memory')
    how = large.add_mutually_exclusive_group()
    how.add_argument(
        '--stream',
        action='store_true',
        help='predict each image at its own size, tile by tile, with a model that sees all of it',
    )
    large.add_argument(
        '--memory',
        type=cli.size,
        metavar='SIZE',
        help='the memory for the tokens of an image, such as 2GiB; if they need more, they are '
        'stored in files; default: half of the free memory',
    )
    large.add_argument(
        '--store', metavar='DIR', help='the folder for these files; default: OUT/unfinished'
    )
    large.add_argument(
        '--scores',
        dest='with_scores',
        action='store_const',
        const=True,
        help='also write the probabilities of the labels',
    )
    large.add_argument(
        '--probabilities',
        choices=('uint8', 'float16'),
        help='also write the probabilities of all classes: as a GeoTIFF in which 255 is 1 '
        '(uint8), or as a Zarr array (float16)',
    )
    large.add_argument(
        '--statistics-window',
        type=cli.positive,
        metavar='PIXELS',
        help='compute the attention statistics in a window of this side around each tile, instead '
        'of over the whole image',
    )
    how.add_argument(
        '--sliced',
        type=cli.positive,
        metavar='PIXELS',
        help='predict slices with sides of this length instead, each one by itself',
    )
    large.add_argument(
        '--overlap',
        type=int,
        metavar='PIXELS',
        help='the number of pixels that neighboring slices share; default: 128',
    )
    part = parser.add_argument_group('the part of a large image that is predicted')
    part.add_argument(
        '--nodata',
        type=float,
        metavar='VALUE',
        help='the value of pixels without data; default: the value in the file',
    )
    part.add_argument(
        '--region',
        metavar='WHERE',
        help='a window LEFT,TOP,RIGHT,BOTTOM in pixels, or a GeoJSON file or GeoPackage with '
        'polygons',
    )
    part.add_argument(
        '--mask', metavar='FILE', help='predict only the pixels where this image is not 0'
    )
    part.add_argument(
        '--tissue',
        action='store_const',
        const=True,
        help='predict only the tissue on slides, which is found by its color',
    )
    part.add_argument(
        '--level', type=int, metavar='N', help='read the N-th overview; 0 is the full image'
    )
    part.add_argument(
        '--resolution',
        type=float,
        metavar='SIZE',
        help='resample to pixels of this size, in meters on the ground or micrometers on a slide',
    )
    part.add_argument(
        '--range',
        dest='value_range',
        type=_range,
        metavar='LOW,HIGH',
        help='the values of the image that become 0 and 255, for images of more than 8 bits; '
        'default: all values that the file allows',
    )
    part.add_argument(
        '--positions',
        choices=('data', 'scene'),
        help='encode the positions of patches relative to the smallest window that holds all '
        'pixels with data, or relative to the whole image; default: data',
    )
    part.add_argument(
        '--mosaic', action='store_true', help='the inputs are the tiles of one image on a map'
    )
    large.add_argument(
        '--vectors',
        choices=('geojson', 'gpkg'),
        help='the format of objects and polygons, GeoJSON or GeoPackage, which needs '
        '"xcit_mm[large]"; default: geojson',
    )
    large.add_argument(
        '--polygons',
        action='store_const',
        const=True,
        help="also write the polygons of a segmentor's classes",
    )
    large.add_argument(
        '--smallest-area',
        type=float,
        metavar='AREA',
        help='merge smaller regions into their largest neighbor before the polygons are made. The '
        'area is in square meters on the ground if the image has a reference system, otherwise in '
        'the unit of the coordinates, such as pixels of the full image',
    )
    large.add_argument(
        '--simplify',
        type=float,
        metavar='PIXELS',
        help='simplify the polygons along their shared borders, with this tolerance',
    )
    large.add_argument(
        '--cog',
        action='store_const',
        const=True,
        help='write labels, scores and heights, but not probabilities, as cloud-optimized GeoTIFF '
        'files',
    )
    parser.add_argument('--device', help='cpu, cuda, cuda:1; default: the GPU if there is one')
    cli.add_dtype_argument(parser)
    cli.add_compile_argument(parser)
    cli.add_options_argument(parser)
    cli.add_trust_argument(parser)
    args = parser.parse_args()
    checkpoint = args.config if cli.has_weights(args.config) else args.inputs.pop(0)
    with cli.imports():
        from xcit_mm.predict.folders import is_input
    if checkpoint != args.config and is_input(checkpoint):
        parser.error(
            f'a checkpoint is missing: {args.config} has no weights, so name their file or URL '
            f'before {checkpoint}'
        )
    if not args.inputs:
        parser.error(f'{args.config}: name a checkpoint and inputs')
    is_tiled = args.stream or args.sliced is not None
    only_tiled = [action for group in (large, part) for action in group._group_actions]
    ignored = [a for a in only_tiled if not is_tiled and getattr(args, a.dest) not in (None, False)]
    names = [a.option_strings[0] for a in ignored]
    if args.full_size:  # images that do not fit into memory are predicted tile by tile
        names = [name for name in names if name not in ('--memory', '--store')]
    if names:
        parser.error(f'{" and ".join(names)}: only for large images; add --stream or --sliced')
    with cli.imports():
        from xcit_mm.apps.infer.run import LargeOptions, OutputOptions, infer
        from xcit_mm.predict.results.short_texts import few_names
    done, problems, objects = infer(
        args.config,
        checkpoint,
        args.inputs,
        args.out,
        stream=is_tiled,
        large=_options(LargeOptions, args),
        written=_options(OutputOptions, args),
        mosaic=args.mosaic,
        full_size=args.full_size,
        device=args.device,
        dtype=args.dtype,
        compiled=args.compiled,
        trust_checkpoint=args.trust_checkpoint,
        options=args.cfg_options,
    )
    if not done:
        sys.exit(cli.WRONG_INPUT)
    if os.environ.get('RANK', '0') != '0':  # the first process of torchrun tells the user
        return
    print(f'images      {done}')
    if objects is not None:
        hint = f' (none has a score of {args.score_thr}: lower --score-thr)'
        names = few_names([f'{name} {number}' for name, number in objects.most_common()])
        print(f'objects     {objects.total()}{f": {names}" if objects else hint}')
    print(f'output      {args.out}')
    if problems:
        print(f'{len(problems)} of the inputs could not be predicted, see above')
        sys.exit(PART_FAILED)


if __name__ == '__main__':
    cli.run_tool(main)
