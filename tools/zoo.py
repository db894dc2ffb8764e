#!/usr/bin/env python3
"""Try all models of mmdetection and mmsegmentation on this machine, with the installed packages."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

LACKS_OPERATOR = 1  # the exit code
MEANING = """
Builds the model of every config that mmdet and mmseg install, and lists the compiled operators of
mmcv that it can call. Then tries a small config of each family (a folder of configs) that calls
most of them: takes the gradient of a loss and predicts, on random images. Exit code: 0; 1 if a
model needs an operator that is missing; 2 for invalid input."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog=MEANING)
    parser.add_argument(
        'families', nargs='*', metavar='FAMILY', help='as in mmdet/atss or mmseg/fcn; default: all'
    )
    parser.add_argument('--out', type=Path, metavar='FILE', help='write the tables as Markdown')
    args = parser.parse_args()

    with cli.imports():
        from xcit_mm.base.files import require_writable_file
        from xcit_mm.zoo import survey
    if args.out is not None:
        require_writable_file(args.out)
    report, lacks_operator = survey(args.families, lambda line: print(line, flush=True))
    print(f'\n{report}', end='')
    if args.out is not None:
        args.out.write_text(report, encoding='utf-8')
    if lacks_operator:
        sys.exit(LACKS_OPERATOR)


if __name__ == '__main__':
    cli.run_tool(main)
