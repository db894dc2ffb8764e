#!/usr/bin/env python3
"""Write the weights of a checkpoint of the authors, timm, DINO, mmdet 2 or mmseg 0 for mmengine."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        'source', help='a file, its URL, hf://owner/name, or timm:// and a name of timm'
    )
    parser.add_argument('target', type=Path, help='the new file')
    parser.add_argument(
        '--in-channels',
        type=cli.positive,
        metavar='N',
        help='adapt weights for RGB to images of N channels',
    )
    parser.add_argument(
        '--rgb',
        type=int,
        nargs=3,
        metavar=('RED', 'GREEN', 'BLUE'),
        help='the channels, from 0, that get the kernels of red, green and blue; the others get '
        'zeros; default: all get the mean kernel',
    )
    cli.add_trust_argument(parser)
    args = parser.parse_args()

    with cli.imports():
        from xcit_mm.apps.convert.conversion import convert
    print(convert(args.source, args.target, args.trust_checkpoint, args.in_channels, args.rgb))


if __name__ == '__main__':
    cli.run_tool(main)
