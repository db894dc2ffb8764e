"""What the console is spared: the log file has all of it but control characters."""

import logging
import sys
from logging import FileHandler, Logger, LogRecord

from ..errors import printable

# How mmengine's messages of a hundred lines begin: the environment, the config, the hooks.
LONG = ('\n' + '-' * 60 + '\nSystem environment', 'Config:\n', 'Hooks will be executed')
# Four lines for every parameter with an option of its own, hundreds; nobody misses them.
NOISE = 'paramwise_options'


def keep_readable(logger: Logger) -> None:
    """Leave on the console what a person reads, and say where the rest is.

    Names of images, classes and losses come from files: none of their control characters gets to
    a terminal, now or when somebody looks at the log file.

    Args:
        logger: Of the runner, with its handlers.
    """
    logger.addFilter(lambda record: not str(record.msg).startswith(NOISE))
    logger.addFilter(_make_printable)
    for handler in logger.handlers:
        if not isinstance(handler, FileHandler):
            handler.addFilter(_is_short)
    file = log_file(logger)
    if file is not None:
        logger.info('The environment, the config and the hooks are in %s', file)


def log_file(logger: Logger) -> str | None:
    """The path of the file that a logger writes to; None: it has none."""
    handlers = (handler for handler in logger.handlers if isinstance(handler, FileHandler))
    return next((handler.baseFilename for handler in handlers), None)


def _is_short(record: LogRecord) -> bool:
    return record.levelno > logging.INFO or not str(record.msg).startswith(LONG)


def _make_printable(record: LogRecord) -> bool:
    """Replace control characters in a message before any handler has it, at any length."""
    try:
        message = record.getMessage()
    except (TypeError, ValueError):  # it does not fit its arguments, which logging says
        return True
    record.msg, record.args = printable(message.expandtabs(), sys.maxsize), ()
    return True
