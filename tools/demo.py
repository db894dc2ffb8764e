#!/usr/bin/env python3
"""Serve a page that shows what a detector or segmentor finds in the pictures of its visitors."""

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

NUM_EXAMPLES = 6
SHAPES = Path('data/shapes/coco/val2017')
MAX_UPLOAD = 50  # MB of 2**20 bytes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog='Without CONFIG and CHECKPOINT the model is chosen on the page.',
    )
    parser.add_argument(
        'config',
        nargs='?',
        help='the only config that the page offers; a model on the hub (hf://owner/name) or in a '
        'folder needs no checkpoint',
    )
    parser.add_argument('checkpoint', nargs='?', help='file or URL of its weights')
    parser.add_argument('--configs', default='configs', metavar='DIR', help='configs to offer')
    parser.add_argument(
        '--work-dirs', default='work_dirs', metavar='DIR', help='runs whose checkpoints to offer'
    )
    parser.add_argument(
        '--any-checkpoint',
        action='store_true',
        help='also accept other files of this machine and URLs as weights',
    )
    parser.add_argument(
        '--examples',
        nargs='*',
        type=Path,
        default=sorted(SHAPES.glob('*.jpg'))[:NUM_EXAMPLES],
        metavar='FILE',
        help=f'pictures to try a model with; default: {NUM_EXAMPLES} of {SHAPES}, if it exists',
    )
    parser.add_argument(
        '--host',
        default='127.0.0.1',
        help='0.0.0.0: other machines can open the page, too; default: %(default)s',
    )
    parser.add_argument('--port', type=int, default=7860, help='default: %(default)s')
    parser.add_argument(
        '--max-upload',
        type=float,
        default=MAX_UPLOAD,
        metavar='MB',
        help='the largest file to accept; default: %(default)s',
    )
    cli.add_dtype_argument(parser)
    args = parser.parse_args()
    if args.config is not None and cli.has_weights(args.config) and args.checkpoint is None:
        args.checkpoint = args.config
    if args.config is not None and args.checkpoint is None:
        parser.error(f'{args.config}: also name a checkpoint')

    with cli.imports():
        from xcit_mm.apps.demo import OfferedModels, find_models, serve
        from xcit_mm.base.errors import UserError
    if args.config is not None:
        models = OfferedModels(
            lambda: {args.config: [args.checkpoint]}, args.any_checkpoint, args.dtype
        )
        models.load(args.config, args.checkpoint)
    else:
        find = partial(find_models, Path(args.configs), Path(args.work_dirs))
        models = OfferedModels(find, args.any_checkpoint, args.dtype)
        if not find():
            raise UserError(f'there is no config in {args.configs} or {args.work_dirs} to offer')
    serve(models, args.host, args.port, args.examples, args.max_upload)


if __name__ == '__main__':
    cli.run_tool(main)
