#!/usr/bin/env python3
"""Download COCO 2017 or ADE20k, or convert a dataset in another format for the configs."""

import argparse
import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

ROOTS = {'coco': 'data/coco', 'ade20k': 'data/ade'}
SPLITS = ('train', 'val')
# The name of each format, and the class in xcit_mm/data/importers that reads it.
FORMATS = {
    'voc': ('VOC', 'VocDataset'),
    'yolo': ('YOLO', 'YoloDataset'),
    'labelme': ('LabelMe', 'LabelmeDataset'),
    'cvat': ('CVAT', 'CvatDataset'),
    'labelstudio': ('Label Studio', 'LabelstudioDataset'),
    'coco_panoptic': ('panoptic COCO', 'ForeignPanopticDataset'),
}
SIZES = ('n12', 't12', 't24', 's12', 's24', 'm24', 'l24')  # of the released ImageNet weights


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
    for name, (title, _) in FORMATS.items():
        text = f'write annotations and a config for a {title} dataset; images stay in place'
        conversion = datasets.add_parser(name, help=text, description=text)
        text = 'the folder of the dataset, or its YAML, XML or JSON file'
        conversion.add_argument('source', metavar='SRC', help=text)
        text = 'the folder to write to'
        conversion.add_argument('--root', metavar='DIR', required=True, help=text)
        text = 'leave out images whose labels cannot be used, instead of writing nothing'
        conversion.add_argument('--skip-bad', action='store_true', help=text)
        if name != 'coco_panoptic':
            add_start_arguments(conversion, 'coco', 'detector')
    add_masks_parser(datasets)
    return parser.parse_args()


def add_masks_parser(datasets: 'argparse._SubParsersAction') -> None:
    text = 'write a config for a segmentor on images and their label images, which stay in place'
    parser = datasets.add_parser('masks', help=text, description=text)
    parser.add_argument('images', metavar='IMAGES', type=Path, help='the folder of the images')
    text = 'the folder of the label images: PNG or TIFF files with the names of the images'
    parser.add_argument('labels', metavar='LABELS', type=Path, help=text)
    text = 'the folder to write to'
    parser.add_argument('--root', metavar='DIR', type=Path, required=True, help=text)
    text = (
        'the names of the classes, in the order of their numbers, or a file with one in each line; '
        'default: class_0, class_1 and so on, or the names in the file of --colors'
    )
    parser.add_argument('--classes', metavar='NAME,NAME|FILE', help=text)
    text = 'a file with the class of each color: R G B NAME or #rrggbb NAME in each line'
    parser.add_argument('--colors', metavar='FILE', type=Path, help=text)
    text = '0 is unlabeled, and 1 is the first class'
    parser.add_argument('--reduce-zero-label', action='store_true', help=text)
    text = 'leave out images whose labels cannot be used, instead of writing nothing'
    parser.add_argument('--skip-bad', action='store_true', help=text)
    add_start_arguments(parser, 'ade20k', 'segmentor')


def add_start_arguments(parser: argparse.ArgumentParser, released_on: str, kind: str) -> None:
    text = (
        f'what the training starts from: {released_on} (the {kind} that the authors released), '
        f'imagenet, scratch (random weights), or a file; default: {released_on}, for sizes '
        f'without a released {kind} imagenet'
    )
    parser.add_argument('--start', metavar='NAME|FILE', help=text)
    text = 'the size of the backbone; default: t12, with --start scratch n12'
    parser.add_argument('--size', choices=SIZES, help=text)


def main() -> None:
    args = parse_arguments()
    with cli.imports():
        from xcit_mm.config.start import find_start
        from xcit_mm.data.datasets.fetch import DATASETS, prepare
        from xcit_mm.data.importers.color_table import read_names
        from xcit_mm.data.importers.write_coco import convert, objects
        from xcit_mm.data.importers.write_masks import convert_masks
        from xcit_mm.data.importers.write_panoptic import PANOPTIC
    if args.dataset in FORMATS:
        if args.dataset == 'coco_panoptic':
            layout = PANOPTIC
        else:
            layout = objects(find_start(args.start, args.size, 'coco'))
        module = import_module(f'xcit_mm.data.importers.{args.dataset}')
        dataset = getattr(module, FORMATS[args.dataset][1])(args.source)
        convert(dataset, args.root, layout, args.skip_bad)
        return
    if args.dataset == 'masks':
        convert_masks(
            args.images,
            args.labels,
            args.root,
            names=None if args.classes is None else read_names(args.classes),
            colors=args.colors,
            reduces_zero=args.reduce_zero_label,
            start=args.start,
            size=args.size,
            skip_bad=args.skip_bad,
        )
        return
    dataset = DATASETS[args.dataset]
    data_root = prepare(dataset, args.root, args.splits, args.mirror, args.keep_archives)
    next_step = 'the configs find it'
    if Path(args.root) != Path(dataset.root):
        next_step = f'pass --cfg-options data_root={data_root} to the tools'
    print(f'The dataset is complete: {next_step}')


if __name__ == '__main__':
    cli.run_tool(main)
