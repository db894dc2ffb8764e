#!/usr/bin/env python3
"""Draw losses, learning rate and metrics of one or several runs, as a picture and a page."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

SUFFIXES = ('.png', '.html')
SOME_LEFT_OUT = 1  # the exit code


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog='Folders without a run are skipped with a note. Exit code: 0, or '
        '1 if some are missing or cannot be read; 2 if no run is left to draw.',
    )
    parser.add_argument(
        'work_dirs',
        nargs='+',
        type=Path,
        metavar='WORK_DIR',
        help='work dir of a run; several runs share the plots',
    )
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('work_dirs/report'),
        metavar='FILE',
        help='FILE.png, FILE.html, or a folder for report.png and report.html (default: '
        '%(default)s)',
    )
    args = parser.parse_args()
    paths = [args.out]
    if args.out.is_dir() or not args.out.suffix:
        paths = [args.out / f'report{suffix}' for suffix in SUFFIXES]
    elif args.out.suffix not in SUFFIXES:
        parser.error(f'--out {args.out}: neither .png nor .html, and not a folder that exists')

    with cli.imports():
        from xcit_mm.base.errors import UserError
        from xcit_mm.base.files import require_writable
        from xcit_mm.train.report import NoRunError, draw_png, read_runs, write_page
    runs, problems = read_runs(args.work_dirs)
    if not runs:
        raise UserError('; '.join(map(str, problems)))
    require_writable(paths[0].parent)
    for path in paths:
        write = draw_png if path.suffix == '.png' else write_page
        write(runs, path)
    print(f'Written: {", ".join(map(str, paths))}')
    for problem in problems:
        print(f'{sys.argv[0]}: left out: {problem}', file=sys.stderr)
    if not all(isinstance(problem, NoRunError) for problem in problems):
        sys.exit(SOME_LEFT_OUT)


if __name__ == '__main__':
    cli.run_tool(main)
