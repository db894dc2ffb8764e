"""Arguments, errors and output that the command lines have in common.

The tools import PyTorch and xcit_mm, which takes seconds, only after their arguments are parsed, so
that ``--help`` and errors in the arguments need no more than this module.
"""

import argparse
import errno
import io
import logging
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

WRONG_INPUT = 2  # the exit code, as argparse has it
ARCHS = ('n12', 't12', 't24', 's12', 's24', 'm12', 'm24', 'l12', 'l24')
PATCH_SIZES = (4, 8, 16)
DTYPES = ('float32', 'bfloat16', 'float16', 'auto')
LEFT = (errno.EPIPE, errno.EINVAL)  # errors of a pipe without a reader; the second on Windows
SIGNALED = 128  # plus the number of the signal, as shells have it


@contextmanager
def imports() -> Iterator[None]:
    """Import packages that take seconds; if one is missing, or at Ctrl-C, end with one line."""
    handles_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handles_interrupts:  # unless nohup switched them off
        signal.signal(signal.SIGINT, _exit_at_once)
    try:
        yield
    except ImportError as error:  # the message says what to install
        _complain(error)
        sys.exit(WRONG_INPUT)
    finally:
        if handles_interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    """Exit without an exception, which the package that is being imported might catch."""
    os.write(2, f'{sys.argv[0]}: interrupted\n'.encode(errors='replace'))
    os._exit(SIGNALED + number)


def run_tool(main: Callable[[], object], retry: str = 'call it again') -> None:
    """Call the main function of a tool, and turn errors into a sentence on stderr and an exit code.

    A UserError and a full disk exit with 2, an interruption with 128 and the number of its signal
    (130 for Ctrl-C, 143 for SIGTERM). Under torchrun, its summary names the reason, too. Output to
    a pipe that nobody reads any more is dropped, and characters that the encoding of the terminal
    lacks are escaped.

    Args:
        main: Parses the arguments and does the work.
        retry: How to continue once a full disk has room again.
    """
    logging.raiseExceptions = False  # a log on a full disk would bury the reason in tracebacks
    sys.stdout, sys.stderr = map(_tolerant, (sys.stdout, sys.stderr))
    if 'TORCHELASTIC_ERROR_FILE' in os.environ:
        with imports():
            from torch.distributed.elastic.multiprocessing.errors import record
        main = record(main)
    try:
        main()
    except KeyboardInterrupt:
        _complain('interrupted; what was written stays')
        raise SystemExit(SIGNALED + signal.SIGINT) from None
    except Exception as error:
        code = _exit_code(error, retry)
        if code is None:
            raise
        raise SystemExit(code) from None


def _exit_code(error: Exception, retry: str) -> int | None:
    """Print an error that the user can do something about; None for others."""
    from urllib.error import URLError

    from xcit_mm.base.errors import ConfigError, Interrupted, UserError, reason
    from xcit_mm.base.files import DISK_FULL
    from xcit_mm.base.shipped import commands

    message = error
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        what, remedy = 'the disk is full', 'make room'
        if error.errno == errno.EFBIG:
            what, remedy = 'a file is larger than allowed', 'raise the limit (ulimit -f)'
        message = (
            f'{what} ({reason(error)}); files written before are intact: {remedy}, and {retry}'
        )
    elif isinstance(error, URLError):  # of a package that downloads, such as torchvision
        message = (
            f'a file that the config names cannot be reached ({reason(error)}): download it on '
            'another machine and name its path in init_cfg, or set init_cfg=None'
        )
    elif isinstance(error, Interrupted):
        message = f'{error}{_resuming_command()}'
    elif isinstance(error, ConfigError):
        traceback.print_exception(error.__cause__)
    elif not isinstance(error, UserError):
        return None
    _complain(commands(str(message)))
    return SIGNALED + error.signum if isinstance(error, Interrupted) else WRONG_INPUT


def _resuming_command() -> str:
    """Return ': ' and this command with --resume, or '' if a launcher or a resume is in it."""
    name, *words = sys.argv
    if any(word.startswith(('--resume', '--launcher', 'resume=')) for word in words):
        return ''
    return f': {name} {shlex.join(words)} --resume'


def _complain(message: object) -> None:
    print(f'{sys.argv[0]}: {message}', file=sys.stderr)


class _Pipe(io.FileIO):
    """A file whose reader may have left, as in ``tools/train.py ... | head``."""

    def write(self, data: bytes) -> int | None:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in LEFT:
                raise
            return len(data)


def _tolerant(stream: io.TextIOWrapper | None) -> io.TextIOWrapper | None:
    """Return stdout or stderr without errors of printing; streams of other kinds as they are."""
    if stream is None or stream not in (sys.__stdout__, sys.__stderr__):
        return stream
    with suppress(BrokenPipeError):
        stream.flush()
    if stream.isatty():  # on Windows, only Python's own stream writes all characters to a console
        stream.reconfigure(errors='backslashreplace')
        return stream
    buffer = io.BufferedWriter(_Pipe(stream.fileno(), 'w', closefd=False))
    by_line = stream.line_buffering or stream.write_through
    return io.TextIOWrapper(buffer, stream.encoding, 'backslashreplace', line_buffering=by_line)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the tools that run a config."""
    parser.add_argument(
        'config',
        help='any config of mmdetection or mmsegmentation, such as your own, or one of configs/',
    )
    parser.add_argument('--work-dir', help='where to write; default: work_dirs/<config>')
    parser.add_argument(
        '--launcher',
        choices=('none', 'pytorch', 'slurm', 'mpi'),
        default='none',
        help='how the processes of a distributed run were started; pytorch: torchrun',
    )
    # torch.distributed.launch of mim passes this in addition to the variable that counts.
    parser.add_argument('--local-rank', '--local_rank', type=int, help=argparse.SUPPRESS)
    add_options_argument(parser)
    add_trust_argument(parser)


def add_options_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--cfg-options`` of the tools that read a config."""
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=_Options,
        default={},
        metavar='NAME=VALUE',
        help='replace values of the config, as in train_dataloader.batch_size=4; '
        'data_root=DIR changes all data paths, pretrained=FILE sets the backbone weights, '
        'lsj=SIZE trains with large-scale jitter and copy-paste, draft=True decodes JPEG files at '
        'the size that they are resized to',
    )


def add_dtype_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--dtype`` of the tools that predict."""
    parser.add_argument(
        '--dtype',
        choices=DTYPES,
        help='dtype that the model computes in; auto: the fastest that the device has instructions '
        'for; default: auto on a GPU, float32 on a CPU',
    )


def add_compile_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--compile`` of the tools that predict many images."""
    parser.add_argument(
        '--compile',
        action='store_true',
        dest='compiled',
        help='compile the backbone and the neck with torch.compile at the first image',
    )


def add_trust_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--trust-checkpoint`` of the tools that read a checkpoint."""
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='read a checkpoint or an exported file that holds more than weights, and run its code',
    )


def has_weights(config: str) -> bool:
    """Return whether a config names a whole model with weights, on the hub or in a folder."""
    with imports():
        from xcit_mm.base.shipped import is_folder
    return is_folder(config)


def positive(text: str) -> int:
    """Return an integer from 1 that was typed as an argument."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'{text}: not a positive number')
    return int(text)


def size(text: str) -> int:
    """Return the bytes of a size that was typed as an argument, such as 2GiB, 500MB or 1e9."""
    with imports():
        from xcit_mm.base.sizes import bytes_of
    try:
        return bytes_of(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'{text}: not a size such as 2GiB or 500MB') from None


class _Options(argparse.Action):
    """Collect NAME=VALUE in a dict, with the values of :func:`parse_value`."""

    def __call__(self, parser, namespace, values, option_string=None):
        options = dict(getattr(namespace, self.dest))
        for text in values:
            name, equals, value = text.partition('=')
            if not equals:
                parser.error(f'{option_string} {text}: not of the form NAME=VALUE')
            try:
                options[name] = parse_value(value)
            except ValueError:
                parser.error(f'{option_string} {text}: a bracket is not closed')
        setattr(namespace, self.dest, options)


def parse_value(text: str) -> Any:
    """Return a value of ``--cfg-options``, as mmengine's DictAction does without its import.

    Unlike there, spaces within a text stay.

    Args:
        text: A number, True, False, None or a text; or a list ``[a,b]`` or ``a,b``, or a tuple
            ``(a,b)``, of such values, lists and tuples.

    Raises:
        ValueError: If brackets in a list or tuple do not match.
    """
    text = text.strip(' ').strip('\'"')
    if text[:1] + text[-1:] in ('[]', '()'):
        values = map(parse_value, _split(text[1:-1]))
        return tuple(values) if text[0] == '(' else list(values)
    if ',' in text:
        items = _split(text)
        if items != [text]:  # the comma is not in a bracket, as in a file that is named so
            return list(map(parse_value, items))
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return {'true': True, 'false': False}.get(text.lower(), None if text == 'None' else text)


def _split(text: str) -> list[str]:
    """Split at the commas that are outside of brackets."""
    if any(text.count(opening) != text.count(closing) for opening, closing in ('[]', '()')):
        raise ValueError(text)
    items, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in '[(') - (letter in '])')
        if letter == ',' and depth == 0:
            items.append(text[start:place])
            start = place + 1
    return [*items, text[start:]] if text[start:].strip() else items
