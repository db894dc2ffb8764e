#!/usr/bin/env python3
"""Download COCO 2017 or ADE20k, or convert a VOC or YOLO dataset so that the configs can use it."""

import argparse
import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

ROOTS = {'coco': 'data/coco', 'ade20k': 'data/ade'}
SPLITS = ('train', 'val')
# The class that reads each format, in the file of its name in xcit_mm/datasets/importers.
FORMATS = {'voc': 'VocDataset', 'yolo': 'YoloDataset'}
BASE = Path(__file__).resolve().parents[1] / 'configs' / 'faster_rcnn_xcit_n12_16_small.py'


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    datasets = parser.add_subparsers(dest='dataset', required=True)
    for name, root in ROOTS.items():
        text = f'download, check and unpack {name}; the next call resumes an interrupted download'
        download = datasets.add_parser(name, help=text, description=text)
        download.add_argument(
            '--root', metavar='DIR', default=root, help=f'the folder to write to; default: {root}'
        )
        download.add_argument(
            '--splits',
            nargs='+',
            choices=SPLITS,
            default=SPLITS,
            help='only for COCO: val is a twentieth of it and enough to evaluate; default: both',
        )
        text = 'a folder on the web with the archives'
        download.add_argument('--mirror', metavar='URL', help=text)
        text = 'keep the archives in DIR after they are unpacked'
        download.add_argument('--keep-archives', action='store_true', help=text)
    for name in FORMATS:
        text = f'write annotations and a config for a {name.upper()} dataset; images stay in place'
        conversion = datasets.add_parser(name, help=text, description=text)
        text = 'the folder of the dataset, or for YOLO its YAML file'
        conversion.add_argument('source', metavar='SRC', help=text)
        text = 'the folder to write to'
        conversion.add_argument('--root', metavar='DIR', required=True, help=text)
        text = 'leave out images whose labels cannot be used, instead of writing nothing'
        conversion.add_argument('--skip-bad', action='store_true', help=text)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    with cli.imports():
        from xcit_mm.datasets.fetch import DATASETS, prepare
        from xcit_mm.datasets.importers.write_coco import convert
    if args.dataset in FORMATS:
        module = import_module(f'xcit_mm.datasets.importers.{args.dataset}')
        dataset = getattr(module, FORMATS[args.dataset])(args.source)
        convert(dataset, args.root, BASE, args.skip_bad)
        return
    dataset = DATASETS[args.dataset]
    data_root = prepare(dataset, args.root, args.splits, args.mirror, args.keep_archives)
    next_step = 'the configs find it'
    if Path(args.root) != Path(dataset.root):
        next_step = f'pass --cfg-options data_root={data_root} to the tools'
    print(f'The dataset is complete: {next_step}')


if __name__ == '__main__':
    cli.run_tool(main)
