#!/usr/bin/env python3
"""Download COCO 2017 or ADE20k, or convert a VOC or YOLO dataset so that the configs can use it."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

ROOTS = {'coco': 'data/coco', 'ade20k': 'data/ade'}
SPLITS = ('train', 'val')
LAYOUTS = ('voc', 'yolo')
BASE = Path(__file__).resolve().parents[1] / 'configs' / 'faster_rcnn_xcit_n12_16_small.py'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    datasets = parser.add_subparsers(dest='dataset', required=True)
    for name, root in ROOTS.items():
        text = f'download, check and unpack {name}; the next call resumes an interrupted download'
        add_download_arguments(datasets.add_parser(name, help=text, description=text), root)
    for name in LAYOUTS:
        text = f'write annotations and a config for a {name.upper()} dataset; its images stay there'
        add_layout_arguments(datasets.add_parser(name, help=text, description=text))
    args = parser.parse_args()

    with cli.imports():
        from xcit_mm.datasets.convert import convert
        from xcit_mm.datasets.download import DATASETS, prepare
        from xcit_mm.datasets.layouts import VocDataset, YoloDataset
    if args.dataset in LAYOUTS:
        layout = VocDataset if args.dataset == 'voc' else YoloDataset
        convert(layout(args.source), args.root, BASE, args.skip_bad)
        return
    dataset = DATASETS[args.dataset]
    data_root = prepare(dataset, args.root, args.splits, args.mirror, args.keep_archives)
    next_step = 'the configs find it'
    if Path(args.root) != Path(dataset.root):
        next_step = f'pass --cfg-options data_root={data_root} to the tools'
    print(f'The dataset is complete: {next_step}')


def add_download_arguments(parser: argparse.ArgumentParser, root: str) -> None:
    parser.add_argument(
        '--root', metavar='DIR', default=root, help=f'the folder to write to; default: {root}'
    )
    parser.add_argument(
        '--splits',
        nargs='+',
        choices=SPLITS,
        default=SPLITS,
        help='only for COCO: val is a twentieth of it and enough to evaluate; default: both',
    )
    parser.add_argument('--mirror', metavar='URL', help='a folder on the web with the archives')
    parser.add_argument(
        '--keep-archives', action='store_true', help='keep them in DIR after they are unpacked'
    )


def add_layout_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        'source', metavar='SRC', help='the folder of the dataset, or for YOLO its YAML file'
    )
    parser.add_argument('--root', metavar='DIR', required=True, help='the folder to write to')
    parser.add_argument(
        '--skip-bad',
        action='store_true',
        help='leave out images whose labels cannot be used, instead of writing nothing',
    )


if __name__ == '__main__':
    cli.run_tool(main)
