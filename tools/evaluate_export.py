#!/usr/bin/env python3
"""Compare exported files with PyTorch: AP or IoU on the test set of a config, size and time."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

SUMMARY = ('bbox_mAP', 'segm_mAP', 'PQ', 'mIoU', 'mAcc', 'aAcc')  # the metrics of the table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint that the files were exported from')
    parser.add_argument('files', nargs='+', help='files of tools/export.py: .onnx, .xml or .pt2')
    cli.add_options_argument(parser)
    cli.add_trust_argument(parser)
    args = parser.parse_args()

    with cli.imports():
        from xcit_mm.apps.export import evaluate
    rows = evaluate(
        args.config, args.checkpoint, args.files, args.cfg_options, args.trust_checkpoint
    )
    metrics = {name.rpartition('/')[2]: name for name in rows[0].metrics}
    columns = [column for column in SUMMARY if column in metrics]
    width = max(len(row.name) for row in rows)
    print(f'{"":{width}} {"MB":>8} {"ms/image":>9} {"speed":>6}', *columns)
    for row in rows:
        size = '' if row.size is None else f'{row.size / 1e6:.1f}'
        speed = rows[0].milliseconds / row.milliseconds
        values = (f'{row.metrics[metrics[column]]:{len(column)}.4g}' for column in columns)
        print(f'{row.name:{width}} {size:>8} {row.milliseconds:9.1f} {speed:6.2f}', *values)


if __name__ == '__main__':
    cli.run_tool(main)
