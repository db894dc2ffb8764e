#!/usr/bin/env python3
"""Describe images by vectors, search for similar ones, and find near-copies."""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

LEFT_OUT = 1  # exit code
SIZE, SIZE_OF_COPIES = 768, 224  # pixels
DESCRIPTORS = 'token', 'mean', 'gem', 'vlad', 'asmk'


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog='Exit code: 0; 1 if an input is left out; 2 for invalid input.',
    )
    parser.add_argument('inputs', nargs='*', help='images, folders, patterns or URLs')
    parser.add_argument(
        '--checkpoint', required=True, metavar='FILE', help='file, URL or timm://NAME of any XCiT'
    )
    parser.add_argument(
        '--descriptor',
        choices=DESCRIPTORS,
        default='token',
        help='token: the class token; mean, gem, vlad: of the tokens before the class attention; '
        'asmk: for --search and --benchmark only (default: %(default)s)',
    )
    parser.add_argument(
        '--size',
        type=_size,
        help='pixels of the longer side, or native: as the file, streamed if it is too large '
        f'(default: {SIZE}, for --duplicates {SIZE_OF_COPIES})',
    )
    parser.add_argument(
        '--out',
        type=Path,
        metavar='FILE',
        help='descriptors, .npy or .parquet; near-copies, .csv or .json',
    )
    parser.add_argument(
        '--codebook',
        type=Path,
        metavar='FILE',
        help='codebook (.npz) of vlad or asmk: read if the file exists, otherwise written',
    )
    parser.add_argument(
        '--train',
        nargs='+',
        default=[],
        metavar='INPUT',
        help='images that the codebook is learned from (default: the inputs)',
    )
    parser.add_argument(
        '--k', type=cli.positive, help='centers of the codebook (default: vlad 256, asmk 1024)'
    )
    task = parser.add_mutually_exclusive_group()
    task.add_argument(
        '--search',
        nargs='+',
        default=[],
        metavar='QUERY',
        help='images whose nearest images are searched among the inputs',
    )
    parser.add_argument(
        '--index', type=Path, metavar='FILE', help='search in a file of --out, not in inputs'
    )
    parser.add_argument(
        '--top', type=cli.positive, default=5, help='images found (default: %(default)s)'
    )
    task.add_argument(
        '--duplicates',
        action='store_true',
        help='find near-copies among the inputs: resized, cropped or compressed images',
    )
    parser.add_argument(
        '--threshold',
        type=float,
        default=0.8,
        metavar='T',
        help='similarity of near-copies (default: %(default)s)',
    )
    task.add_argument(
        '--benchmark',
        nargs=2,
        metavar=('NAME', 'DIR'),
        help='evaluate on roxford5k, rparis6k or holidays, whose images are in DIR',
    )
    parser.add_argument(
        '--json', type=Path, metavar='FILE', help='write the result of a search or a benchmark'
    )
    parser.add_argument('--sheet', type=Path, metavar='FILE.png', help='draw what was found')
    parser.add_argument('--mean', nargs='+', type=float, metavar='NUMBER', help='of each channel')
    parser.add_argument('--std', nargs='+', type=float, metavar='NUMBER', help='of each channel')
    parser.add_argument('--device', help='cpu, cuda or cuda:N (default: a GPU if there is one)')
    cli.add_dtype_argument(parser)
    cli.add_trust_argument(parser)
    args = parser.parse_args()
    if args.size is None:
        args.size = SIZE_OF_COPIES if args.duplicates else SIZE
    has_images = args.benchmark is not None or args.index is not None
    if bool(args.inputs) == has_images:
        parser.error('name inputs, or --search in an --index, or a --benchmark with its own images')

    with cli.imports():
        from xcit_mm.apps.retrieval.benchmarks import run_benchmark
        from xcit_mm.apps.retrieval.duplicates import find_duplicates
        from xcit_mm.apps.retrieval.run import EmbedOptions, check_options, embed
        from xcit_mm.base.errors import printable
        from xcit_mm.base.files import require_writable_file, write_json
        from xcit_mm.predict.embedder import Embedder
    fields = ('descriptor', 'size', 'k', 'train', 'codebook', 'out', 'search', 'index', 'top')
    fields += ('sheet', 'duplicates', 'threshold', 'benchmark')
    options = EmbedOptions(**{name: getattr(args, name) for name in fields})
    check_options(options)
    if args.json is not None:
        if args.out is not None and args.json == args.out.with_suffix('.json'):
            parser.error(
                f'--json {args.json} is where the names of --out are written: name another'
            )
        require_writable_file(args.json)
    embedder = Embedder(
        args.checkpoint,
        args.device,
        args.dtype,
        None if args.size == 'native' else args.size,
        args.trust_checkpoint,
        args.mean,
        args.std,
        fit='longer',
    )
    if args.duplicates:
        content, problems = find_duplicates(embedder, args.inputs, options)
        print(_copies(content))
    elif args.benchmark is not None:
        content, problems = run_benchmark(embedder, options), []
        print(_results(content))
    else:
        content, problems = embed(embedder, args.inputs, options)
    if args.out is not None and not args.duplicates:
        print(
            printable(f'{args.out}: {content["images"]} images, {content["dimensions"]} dimensions')
        )
    for row in content.get('found', []):
        print(printable(row['query']))
        for image in row['images']:
            print(printable(f'  {image["score"]:.4f}  {image["name"]}'))
    if args.json is not None:
        write_json(args.json, content)
    if problems:
        sys.exit(LEFT_OUT)


def _copies(content: dict[str, Any]) -> str:
    from xcit_mm.base.errors import printable

    lines = [
        f'{content["images"]} images, {len(content["pairs"])} pairs of near-copies in '
        f'{len(content["groups"])} groups'
    ]
    for number, group in enumerate(content['groups'], 1):
        lines += [f'group {number}', *(f'  {name}' for name in group)]
    return printable('\n'.join(lines))


def _results(content: dict[str, Any]) -> str:
    lines = [f'{content["benchmark"]}: {content["images"]} images, {content["queries"]} queries']
    for setting, row in content['settings'].items():
        if row['mean_average_precision'] is None:
            lines.append(f'{setting:8}no query has positives')
            continue
        figure = '' if row['published'] is None else f' (table D.4: {row["published"]:.1f})'
        precision = ''.join(f', mP@{k} {value:.1f}' for k, value in row['precision'].items())
        lines.append(f'{setting:8}mAP {row["mean_average_precision"]:.1f}{figure}{precision}')
    return '\n'.join(lines)


def _size(text: str) -> int | str:
    return text if text == 'native' else cli.positive(text)


if __name__ == '__main__':
    cli.run_tool(main)
