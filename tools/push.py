#!/usr/bin/env python3
"""Upload a trained model to the Hugging Face hub: weights, config and model card."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog='The token comes from "hf auth login" or the variable HF_TOKEN.',
    )
    parser.add_argument('config', help='a file of configs/')
    parser.add_argument('checkpoint', help='file or URL of the weights')
    parser.add_argument('repo', metavar='OWNER/NAME', help='the name of the model on the hub')
    parser.add_argument(
        '--metrics',
        metavar='FILE',
        help='the file that tools/test.py --out wrote for this checkpoint',
    )
    parser.add_argument(
        '--dataset',
        metavar='NAME',
        help="the dataset of the metrics; default: the name of the folder of the config's data",
    )
    parser.add_argument(
        '--license', metavar='ID', help='the license of the weights, such as apache-2.0'
    )
    parser.add_argument('--picture', metavar='FILE', help='an image that the model card shows')
    parser.add_argument('--private', action='store_true', help='make a new model private')
    parser.add_argument(
        '--folder', metavar='DIR', help='write the files to this new folder, and upload nothing'
    )
    cli.add_options_argument(parser)
    cli.add_trust_argument(parser)
    args = parser.parse_args()

    with cli.imports():
        from xcit_mm.apps.push.run import push
    where = push(
        args.config,
        args.checkpoint,
        args.repo,
        metrics=args.metrics,
        dataset=args.dataset,
        license=args.license,
        picture=args.picture,
        private=args.private,
        folder=args.folder,
        trust_checkpoint=args.trust_checkpoint,
        options=args.cfg_options,
    )
    print(f'{"uploaded to" if args.folder is None else "written to"} {where}')


if __name__ == '__main__':
    cli.run_tool(main)
