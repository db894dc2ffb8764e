"""Tools as a user types them, without the seconds that Python takes to import what they stand on.

    forked_tools.py

For every request, a line of JSON on stdin, a process is forked from this one, which has imported
everything, and its exit code is printed. A request has

    argv: a tool and its arguments, or ['-c', program]
    cwd: where it runs
    log: a file for what it prints
    only: 'parse' to stop once the arguments are read and the config is loaded with its options, or
        'options' to print the names of its options instead, and of those that it cannot do without
"""

import json
import os
import runpy
import sys
import traceback
from argparse import Action, ArgumentParser, _SubParsersAction
from pathlib import Path

import timm  # noqa: F401

from xcit_mm.engine.config.check import FRAMEWORK_PARTS
from xcit_mm.engine.config.load import load_config
from xcit_mm.environment import require

for package in ('mmdet', 'mmseg'):  # all that takes long, before the first fork
    for part in FRAMEWORK_PARTS:
        require(f'{package}.{part}')


class Done(BaseException):
    """What was asked for is there; no tool catches it."""


def needed(action: Action) -> bool:
    return bool(action.required and action.option_strings)


def stop_after_parsing(parser: ArgumentParser, *args: object) -> None:
    parsed = vars(parse_args(parser, *args))
    if 'config' in parsed and 'cfg_options' in parsed:
        load_config(parsed['config'], parsed['cfg_options'])
    raise Done


def print_options(parser: ArgumentParser, *args: object) -> None:
    required = [action.option_strings[0] for action in parser._actions if needed(action)]
    parsers = [parser]
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            parsers += action.choices.values()
    known = {name for part in parsers for name in part._option_string_actions}
    print(json.dumps(dict(known=sorted(known), required=required)))
    raise Done


parse_args = ArgumentParser.parse_args
STOPS = {'parse': stop_after_parsing, 'options': print_options}


def call(argv: list[str], only: str | None = None) -> int:
    """The exit code of a tool, or of a program in the place of it."""
    if only is not None:
        ArgumentParser.parse_args = STOPS[only]
    sys.argv = argv
    try:
        if argv[0] == '-c':
            exec(compile(argv[1], 'the page', 'exec'), {'__name__': '__main__'})
        else:
            runpy.run_path(argv[0], run_name='__main__')
    except Done:
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 1 if only else 0  # parsing would have ended it


def fork(argv: list[str], cwd: str, log: str, only: str | None = None) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, 1)
        os.dup2(target, 2)
        os.chdir(cwd)
        code = call(argv, only)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == '__main__':
    print(Path(sys.modules['xcit_mm'].__file__).parents[1], flush=True)
    for line in sys.stdin:
        print(fork(**json.loads(line)), flush=True)
