"""What the command lines have in common."""

import errno
import io
import logging
import re
import signal
import sys
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mmengine.config import DictAction
from torch.distributed.elastic.multiprocessing.errors import record

from .errors import Interrupted, UserError, reason

WRONG_INPUT = 2  # the exit code, as of argparse
SIGNALLED = 128  # and the number of the signal, as of shells
SPACE = '\0'  # stands for one; no argument of a process has it
# The last is of a file that is larger than the disk or the shell (ulimit) allows.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
    # What mim starts, torch.distributed.launch, passes it beside the variable that counts.
    parser.add_argument('--local-rank', '--local_rank', type=int, help=SUPPRESS)
    add_options_argument(parser)
    add_trust_argument(parser)


def add_options_argument(parser: ArgumentParser) -> None:
    """The argument of every tool that reads a config."""
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=_Options,
        default={},
        metavar='NAME=VALUE',
        help='replace values of the config, as in train_dataloader.batch_size=4; '
        'data_root=DIR moves all of the data, pretrained=FILE is what the backbone starts from',
    )


class _Options(DictAction):
    """mmengine's NAME=VALUE, with an error of argparse where that is not what was typed.

    Spaces within a text stay, which mmengine drops; those around the values of a list do not.
    """

    @staticmethod
    def _parse_iterable(text: str) -> Any:
        kept = re.sub(r'(?<=[^\s,(\[]) +(?=[^\s,)\]])', lambda m: SPACE * len(m[0]), text)
        return _with_spaces(DictAction._parse_iterable(kept))

    def __call__(self, parser, namespace, values, option_string=None):
        for value in values:
            if '=' not in value:
                parser.error(f'{option_string} {value}: not of the form NAME=VALUE')
        try:
            super().__call__(parser, namespace, values, option_string)
        except AssertionError:  # how mmengine finds that brackets do not match
            parser.error(f'{option_string} {" ".join(values)}: a bracket is not closed')


def _with_spaces(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_with_spaces, value))
    return value.replace(SPACE, ' ') if isinstance(value, str) else value


def add_trust_argument(parser: ArgumentParser) -> None:
    """The argument of every tool that reads a checkpoint."""
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='read a checkpoint that holds more than weights, and run whatever code is in it',
    )


def run_tool(function: Callable[[], object]) -> None:
    """Call ``function`` and turn its end into an exit code, and a sentence on stderr.

    A UserError is 2, an interruption 128 and its signal (130 Ctrl-C, 143 SIGTERM), a full disk 2.
    Under torchrun the reason is in its summary, too. What is printed to a pipe that nobody reads
    any more is lost without an error, and what the encoding of the terminal lacks is escaped.
    """
    logging.raiseExceptions = False  # a log on a full disk would bury the reason in tracebacks
    sys.stdout, sys.stderr = map(_patient, (sys.stdout, sys.stderr))
    try:
        record(function)()
    except Interrupted as interruption:
        print(f'{sys.argv[0]}: {interruption}', file=sys.stderr)
        raise SystemExit(SIGNALLED + interruption.signum) from None
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        what, remedy = 'the disk is full', 'make room'
        if error.errno == errno.EFBIG:
            what, remedy = 'a file is larger than is allowed', 'raise the limit (ulimit -f)'
        print(
            f'{sys.argv[0]}: {what} ({reason(error)}); what was written before is intact: '
            f'{remedy}, and resume a training with --resume',
            file=sys.stderr,
        )
        raise SystemExit(WRONG_INPUT) from None
    except UserError as error:
        print(f'{sys.argv[0]}: {error}', file=sys.stderr)
        raise SystemExit(WRONG_INPUT) from None
    except KeyboardInterrupt:
        print(f'{sys.argv[0]}: interrupted; what was written stays', file=sys.stderr)
        raise SystemExit(SIGNALLED + signal.SIGINT) from None


class _Pipe(io.FileIO):
    """A file whose reader may have left, as in ``tools/train.py ... | head``."""

    def write(self, data: bytes) -> int | None:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def _patient(stream: io.TextIOWrapper | None) -> io.TextIOWrapper | None:
    """The same stream, where it is that of the process, without the errors of printing."""
    if stream is None or stream not in (sys.__stdout__, sys.__stderr__):
        return stream
    with suppress(BrokenPipeError):
        stream.flush()
    pipe = _Pipe(stream.fileno(), 'w', closefd=False)
    return io.TextIOWrapper(
        pipe if stream.write_through else io.BufferedWriter(pipe),
        stream.encoding,
        'backslashreplace',
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
