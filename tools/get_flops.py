#!/usr/bin/env python3
"""Count parameters and multiply-adds of a backbone, classifier, detector or segmentor."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

MEANING = """
multiply-adds: what the model needs as the paper defines it (table 1 calls them FLOPs), in matrix
products, including the attention, and convolutions. computed: what xcit_mm needs for the same
result on a CPU in float32, where the attention of many tokens needs no queries, keys and values."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog=MEANING)
    parser.add_argument(
        'config', nargs='?', help='config file or hf://owner/name: count the whole model'
    )
    parser.add_argument('--arch', choices=cli.ARCHS, help='count a backbone instead of a config')
    parser.add_argument('--patch', type=int, choices=cli.PATCH_SIZES, default=16)
    parser.add_argument(
        '--classifier', action='store_true', help="count timm's ImageNet classifier of --arch"
    )
    parser.add_argument(
        '--size',
        nargs=2,
        type=cli.positive,
        required=True,
        metavar=('HEIGHT', 'WIDTH'),
        help='image size in pixels',
    )
    parser.add_argument('--out', type=Path, metavar='FILE', help='write the numbers as JSON')
    cli.add_options_argument(parser)
    args = parser.parse_args()
    if (args.config is None) == (args.arch is None):
        parser.error('name a config or an --arch')
    if args.config is not None and args.classifier:
        parser.error('--classifier needs an --arch instead of a config')

    with cli.imports():
        from xcit_mm.apps import flops
        from xcit_mm.base.files import require_writable_file
    if args.out is not None:
        require_writable_file(args.out)
    size = tuple(args.size)
    if args.config is not None:
        count = flops.count_config(args.config, size, args.cfg_options)
    elif args.classifier:
        count = flops.count_classifier(args.arch, args.patch, size)
    else:
        count = flops.count_backbone(args.arch, args.patch, size)
    print(flops.table(count))
    if args.out is not None:
        flops.write_json(args.out, count)


if __name__ == '__main__':
    cli.run_tool(main)
