#!/usr/bin/env python3
"""Download COCO 2017 or ADE20k, check, unpack; what was interrupted goes on the next time."""

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import imports

with imports():
    from xcit_mm.datasets.prepare import DATASETS, SPLITS, prepare
    from xcit_mm.engine import cli


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('dataset', choices=tuple(DATASETS))
    parser.add_argument(
        '--root', metavar='DIR', help='where to; default: data/coco or data/ade, as in the configs'
    )
    parser.add_argument(
        '--splits',
        nargs='+',
        choices=SPLITS,
        default=SPLITS,
        help='of COCO: val alone, to evaluate, is a twentieth of it; default: both',
    )
    parser.add_argument(
        '--mirror', metavar='URL', help='a folder on the web that has the archives by their names'
    )
    parser.add_argument(
        '--keep-archives', action='store_true', help='leave them in DIR when they are unpacked'
    )
    args = parser.parse_args()
    dataset = DATASETS[args.dataset]
    root = args.root or dataset.root
    say = partial(print, flush=True)
    data_root = prepare(dataset, root, args.splits, args.mirror, args.keep_archives, say)
    found = 'configs find it'
    if Path(root) != Path(dataset.root):
        found = f'tools take --cfg-options data_root={data_root}'
    print(f'All of it is there; the {found}')


if __name__ == '__main__':
    cli.run_tool(main)
