"""A readable console; the log file has everything except control characters."""

import logging
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from logging import FileHandler, Logger, LogRecord

from .errors import printable

PARAMETER_GROUPS = 'The groups of parameters:'
ADAPTED = 'The changes of the config:'
STOPPED = 'The run was '
# The start of long messages: mmengine's about the environment, the config and the hooks, of a
# hundred lines each, and ours about the groups, of which layer decay makes dozens, and about the
# changes of a config that was written for mmdet or mmseg.
LONG = (
    '\n' + '-' * 60 + '\nSystem environment',
    'Config:\n',
    'Hooks will be executed',
    PARAMETER_GROUPS,
    ADAPTED,
    STOPPED,  # which the command prints at its end
)
# Four lines for each of hundreds of parameters with options, a line for each of a momentum teacher
# (which no optimizer changes), mmengine's notes on its own code, and its warning about accumulated
# gradients that a resume loses: our loops lose none.
NOISE = (
    'paramwise_options',
    'teacher.',
    '"FileClient" will be deprecated',
    '"HardDiskBackend" is the alias',
    'Resumed iteration number is not divisible',
    'Distributed training is not used, all SyncBatchNorm',
    'The prefix is not set in metric class',
    'Exp name: ',
    'The previous best checkpoint ',  # the next line names the new one
)
# How a line of mmengine for each frozen parameter ends.
FROZEN = 'is skipped since its requires_grad=False'
# A learning rate in a line of the losses that is there twice.
SAME_RATE = re.compile(r'\bbase_lr: (\S+) (?=lr: \1 )')
# How warnings of other packages start that no user can act on.
KNOWN_WARNINGS = (
    'Default ``avg_non_ignore`` is False',  # open-mmlab/mmsegmentation#3562
    'torch.meshgrid: in an upcoming release',  # open-mmlab/mmdetection#8090
    'Detected call of `scheduler.step()` before',  # mmengine's, of gradients that are accumulated
)


def keep_readable(logger: Logger) -> None:
    """Drop long messages from the console, and control characters from all messages.

    The names of images, classes and losses come from files, so that a control character in them
    could reach the terminal of anyone who looks at the log.
    """
    for start in KNOWN_WARNINGS:
        warnings.filterwarnings('ignore', re.escape(start))
    logger.addFilter(lambda record: not str(record.msg).startswith(NOISE))
    logger.addFilter(lambda record: not str(record.msg).endswith(FROZEN))
    logger.addFilter(_make_printable)
    for handler in logger.handlers:
        if isinstance(handler, FileHandler):  # it has the encoding of the locale
            handler.stream.reconfigure(errors='backslashreplace')
        else:
            handler.addFilter(lambda r: r.levelno > logging.INFO or not str(r.msg).startswith(LONG))
    file = log_file(logger)
    if file is not None:
        logger.info('The environment, the config and the hooks are in %s', file)


@contextmanager
def only_warnings(logger: Logger) -> Iterator[None]:
    """Drop what is below a warning from a log inside a ``with`` block."""

    def is_warning(record: LogRecord) -> bool:
        return record.levelno >= logging.WARNING

    logger.addFilter(is_warning)
    try:
        yield
    finally:
        logger.removeFilter(is_warning)


def log_file(logger: Logger) -> str | None:
    """Return the path of the file that a logger writes to, or None."""
    handlers = (handler for handler in logger.handlers if isinstance(handler, FileHandler))
    return next((handler.baseFilename for handler in handlers), None)


def _make_printable(record: LogRecord) -> bool:
    try:
        message = record.getMessage()
    except (TypeError, ValueError):  # logging itself reports arguments that do not fit
        return True
    message = SAME_RATE.sub('', message.expandtabs())
    record.msg, record.args = printable(message, sys.maxsize), ()
    return True
