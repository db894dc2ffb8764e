#!/usr/bin/env python3
"""Read all data of a config, and list the images and annotations that a run cannot use."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

WOULD_STOP = 1  # the exit code


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog='Exit code: 0; 1 if a run would stop; 2 for invalid input.'
    )
    parser.add_argument('config', help='a file of configs/')
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        '--statistics',
        action='store_true',
        help='only measure the mean and the standard deviation of each band of the training '
        'images, and print the lines for the config',
    )
    only.add_argument(
        '--frequencies',
        action='store_true',
        help='only count the pixels or objects of each class in the training images, and print a '
        'config that balances them',
    )
    parser.add_argument(
        '--workers', type=cli.positive, help='number of processes; default: one per core'
    )
    parser.add_argument(
        '--out',
        type=Path,
        metavar='FILE',
        help='JSON file for the list of problems, the statistics or the frequencies',
    )
    cli.add_options_argument(parser)
    args = parser.parse_args()

    with cli.imports():
        from xcit_mm.base.files import require_writable_file, write_json
        from xcit_mm.config.adapt import adapt
        from xcit_mm.config.load import load_config
        from xcit_mm.config.rules import check_backbone
        from xcit_mm.data.audit.audit import check_dataset, print_report
        from xcit_mm.data.audit.band_statistics import band_statistics
        from xcit_mm.data.audit.class_frequencies import class_frequencies
    if args.out is not None:
        require_writable_file(args.out)
    cfg = load_config(args.config, args.cfg_options)
    if cfg.get('model') is not None:
        check_backbone(cfg)
    adapt(cfg)
    if args.statistics or args.frequencies:
        measure = band_statistics if args.statistics else class_frequencies
        report = measure(cfg, workers=args.workers)
        print(report.text())
    else:
        report = check_dataset(cfg, workers=args.workers)
        print_report(report)
        if report.findings and args.out is None:
            print('--out FILE writes all of them.')
    if args.out is not None:
        write_json(args.out, asdict(report))
    if getattr(report, 'failures', None):
        sys.exit(WOULD_STOP)


if __name__ == '__main__':
    cli.run_tool(main)
