#!/usr/bin/env python3
"""Print which classes and values of a config a training on this machine replaces, and why."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
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
