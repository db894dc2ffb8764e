#!/usr/bin/env python3
"""Train a detector or a segmentor from a config file, and evaluate it."""

import argparse
import sys
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a clone as it stands

from tools import cli

HINT = (
    'options of the config are set with --cfg-options NAME=VALUE, such as max_iters=1000, '
    'scale=640, train_dataloader.batch_size=8 or optim_wrapper.optimizer.lr=1e-4'
)


class Parser(argparse.ArgumentParser):
    """A parser that says what stands for the arguments of other trainers, such as --epochs."""

    def error(self, message: str) -> NoReturn:
        is_unknown = message.startswith('unrecognized arguments')
        super().error(f'{message}; {HINT}' if is_unknown else message)


def main() -> None:
    parser = Parser(description=__doc__)
    cli.add_run_arguments(parser)
    parser.add_argument(
        '--resume',
        nargs='?',
        const=True,
        default=False,
        metavar='FILE',
        help='continue from the newest checkpoint in the work dir, or from this one',
    )
    parser.add_argument(
        '--logger',
        nargs='+',
        action='extend',
        choices=('tensorboard', 'wandb', 'mlflow'),
        default=[],
        help='also log losses and metrics to TensorBoard, Weights & Biases or MLflow',
    )
    parser.add_argument(
        '--tensorboard',
        action='append_const',
        dest='logger',
        const='tensorboard',
        help='the same as --logger tensorboard',
    )
    parser.add_argument(
        '--graphs',
        action='store_true',
        help='replay CUDA graphs of backbone, neck and dense heads for sizes that come again',
    )
    args = parser.parse_args()

    with cli.imports():
        from xcit_mm.train import train
    train(
        args.config,
        work_dir=args.work_dir,
        resume=args.resume,
        launcher=args.launcher,
        trust_checkpoint=args.trust_checkpoint,
        options=args.cfg_options,
        loggers=args.logger,
        graphs=args.graphs,
    )


if __name__ == '__main__':
    cli.run_tool(main, retry='resume training with --resume')
