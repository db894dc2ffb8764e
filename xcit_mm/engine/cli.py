"""What the command lines have in common."""

import sys
from argparse import ArgumentParser
from collections.abc import Callable

from mmengine.config import DictAction

from ..errors import UserError

WRONG_INPUT = 2  # the exit code, as of argparse
INTERRUPTED = 130  # as of shells: 128 and the number of SIGINT


def add_run_arguments(parser: ArgumentParser) -> None:
    """The arguments of every tool that runs a config."""
    parser.add_argument('config', help='a file of configs/')
    parser.add_argument('--work-dir', help='where to write; default: work_dirs/<config>')
    parser.add_argument(
        '--launcher',
        choices=('none', 'pytorch', 'slurm', 'mpi'),
        default='none',
        help='how the processes of a distributed run were started; pytorch: torchrun',
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=_Options,
        default={},
        metavar='NAME=VALUE',
        help='replace values of the config, as in train_dataloader.batch_size=4; '
        'data_root=DIR moves all of the data, pretrained=FILE is what the backbone starts from',
    )
    add_trust_argument(parser)


class _Options(DictAction):
    """mmengine's NAME=VALUE, with an error of argparse where that is not what was typed."""

    def __call__(self, parser, namespace, values, option_string=None):
        for value in values:
            if '=' not in value:
                parser.error(f'{option_string} {value}: not of the form NAME=VALUE')
        try:
            super().__call__(parser, namespace, values, option_string)
        except AssertionError:  # how mmengine finds that brackets do not match
            parser.error(f'{option_string} {" ".join(values)}: a bracket is not closed')


def add_trust_argument(parser: ArgumentParser) -> None:
    """The argument of every tool that reads a checkpoint."""
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='read a checkpoint that holds more than weights, and run whatever code is in it',
    )


def run_tool(function: Callable[[], object]) -> None:
    """Call ``function``; a UserError becomes one line on stderr and exit code 2, Ctrl-C 130."""
    try:
        function()
    except UserError as error:
        print(f'{sys.argv[0]}: {error}', file=sys.stderr)
        raise SystemExit(WRONG_INPUT) from None
    except KeyboardInterrupt:
        print(f'{sys.argv[0]}: interrupted; what was written stays', file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
