#!/usr/bin/env python3
"""Print which classes and values of a config a training on this machine replaces, and why.

``backbone ARCH PATCH`` instead of a config prints the lines that put an XCiT into a config.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

FRAMEWORKS = ('mmdet', 'mmseg')


def main() -> None:
    if sys.argv[1:2] == ['backbone']:
        print_backbone(sys.argv[2:])
    else:
        print_replacements()


def print_backbone(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog='xcit config backbone',
        description='Print the lines that put an XCiT into a config of your own, with the weights '
        'of its release.',
    )
    parser.add_argument('arch', choices=cli.ARCHS)
    parser.add_argument('patch', type=int, choices=cli.PATCH_SIZES, help='pixels of a patch')
    parser.add_argument(
        '--for', choices=FRAMEWORKS, dest='framework', help='print only one of them; default: both'
    )
    args = parser.parse_args(arguments)

    with cli.imports():
        from xcit_mm.config.snippet import backbone_snippet
    print(backbone_snippet(args.arch, args.patch, args.framework), end='')


def print_replacements() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.partition('\n')[0],
        epilog='backbone ARCH PATCH prints the lines that put an XCiT into a config of your own: '
        'config backbone --help',
    )
    parser.add_argument('config', help='a file of configs/, or hf://owner/name')
    parser.add_argument(
        '--full',
        action='store_true',
        help='print the whole config as it runs, with the replacements as comments',
    )
    cli.add_options_argument(parser)
    args = parser.parse_args()

    with cli.imports():
        from xcit_mm.config.show import show
    print(show(args.config, args.cfg_options, args.full))


if __name__ == '__main__':
    cli.run_tool(main)
