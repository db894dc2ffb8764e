#!/usr/bin/env python3
"""Describe images by vectors, and search for similar ones."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

LEFT_OUT = 1  # exit code
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
        'asmk: for --search only (default: %(default)s)',
    )
    parser.add_argument(
        '--size',
        type=_size,
        default=768,
        help='pixels of the longer side, or native: as the file, streamed if it is too large '
        '(default: %(default)s)',
    )
    parser.add_argument('--out', type=Path, metavar='FILE', help='descriptors, .npy or .parquet')
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
    parser.add_argument(
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
    parser.add_argument('--json', type=Path, metavar='FILE', help='write what was found as JSON')
    parser.add_argument('--sheet', type=Path, metavar='FILE.png', help='draw what was found')
    parser.add_argument('--mean', nargs='+', type=float, metavar='NUMBER', help='of each channel')
    parser.add_argument('--std', nargs='+', type=float, metavar='NUMBER', help='of each channel')
    parser.add_argument('--device', help='cpu, cuda or cuda:N (default: a GPU if there is one)')
    cli.add_dtype_argument(parser)
    cli.add_trust_argument(parser)
    args = parser.parse_args()

    with cli.imports():
        from xcit_mm.errors import printable
        from xcit_mm.files import require_writable_file, write_json
        from xcit_mm.inference.embedder import Embedder
        from xcit_mm.retrieval.run import EmbedOptions, check_options, embed
    fields = ('descriptor', 'size', 'k', 'train', 'codebook', 'out', 'search', 'index', 'top')
    options = EmbedOptions(**{name: getattr(args, name) for name in fields}, sheet=args.sheet)
    check_options(options)
    if args.json is not None:
        if not args.search:
            parser.error('--json is for a search: name queries with --search')
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
    content, problems = embed(embedder, args.inputs, options)
    if args.out is not None:
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


def _size(text: str) -> int | str:
    return text if text == 'native' else cli.positive(text)


if __name__ == '__main__':
    cli.run_tool(main)
