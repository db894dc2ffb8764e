"""The command ``xcit``: the tools of xcit_mm by their names.

It is a module of its own because the package imports PyTorch, which takes seconds.
"""

import argparse
import ast
import os
import runpy
import shutil
import sys
import textwrap
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import NoReturn

SHELLS = ('bash', 'zsh', 'fish', 'powershell')
WRONG_INPUT = 2  # the exit code, as argparse has it
SHIPPED = runpy.run_path(str(Path(find_spec('xcit_mm').origin).with_name('base') / 'shipped.py'))


def main() -> None:
    """Run the tool that the first argument names, with the other arguments."""
    if '_ARGCOMPLETE' in os.environ:
        _complete()
    name, *arguments = sys.argv[1:] or ['--help']
    if name in ('--help', '-h'):
        _print(_help())
    elif name == '--version':
        print(runpy.run_path(str(SHIPPED['PACKAGE'] / 'base/version.py'))['__version__'])
    elif name == '--completion':
        _print_completion(*arguments)
    elif name == 'configs':
        _print_configs(*arguments)
    elif tool := SHIPPED['tools']().get(name.replace('_', '-')):
        _run(tool, name, arguments)
    else:
        _refuse(f'{name} is not a command', name, [*_commands()], 'xcit lists all commands')


def _run(tool: Path, name: str, arguments: list[str]) -> None:
    """Run a tool as a script, but with the name of its command in usage and errors."""
    sys.argv = [f'xcit {name}', *arguments]
    script = sys.modules['__main__'] = ModuleType('__main__')
    script.__file__ = str(tool)  # which data workers import
    exec(compile(tool.read_bytes(), str(tool), 'exec'), vars(script))


def _print(text: str) -> None:
    """Print to a reader that may leave before the end, as in ``xcit | head``."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at exit


def _refuse(problem: str, name: str, choices: list[str], remedy: str) -> NoReturn:
    close = get_close_matches(name, choices, n=1)
    remedy = f'did you mean {close[0]}?' if close else remedy
    print(f'xcit: {problem}; {remedy}', file=sys.stderr)
    sys.exit(WRONG_INPUT)


def _commands() -> dict[str, str]:
    """Return what each command does, in a sentence."""
    commands = {'configs': 'List the configs, or print the path of one.'}
    for name, path in SHIPPED['tools']().items():
        doc = ast.get_docstring(ast.parse(path.read_text(encoding='utf-8'))) or ''
        commands[name] = ' '.join(doc.split('\n\n')[0].split())
    return dict(sorted(commands.items()))


def _configs() -> list[str]:
    return sorted(path.stem for path in SHIPPED['CONFIGS'].glob('*.py'))


def _help() -> str:
    width = max(60, min(100, shutil.get_terminal_size().columns))
    lines = ['usage: xcit COMMAND ARGUMENT...', '', 'Commands (xcit COMMAND --help):']
    commands = _commands()
    column = max(map(len, commands)) + 4
    for name, doc in commands.items():
        first = f'  {name:<{column - 2}}'
        lines += textwrap.wrap(doc, width, initial_indent=first, subsequent_indent=' ' * column)
    lines += ['', 'Configs (each name is the start of a row and one of its ends):']
    for start, names in groupby(_configs(), lambda name: f'{name.partition("_xcit_")[0]}_xcit_'):
        ends = ' '.join(name.removeprefix(start) for name in names)
        first = f'  {start:<30}'
        lines += textwrap.wrap(ends, width, initial_indent=first, subsequent_indent=' ' * 32)
    lines += ['', 'xcit --completion SHELL prints what completes commands and configs in the']
    lines += [f'shell ({", ".join(SHELLS)}): eval "$(xcit --completion bash)"']
    return '\n'.join(lines)


def _print_configs(name: str | None = None, *more: str) -> None:
    configs = _configs()
    if name is None:
        _print('\n'.join(configs))
        return
    path = SHIPPED['find_config'](name)
    if more or not path.is_file():
        typed = ' '.join([name, *more])
        _refuse(f'{typed} is not a config', typed, configs, 'xcit configs lists all configs')
    print(path)


def _print_completion(shell: str = '', *more: str) -> None:
    import argcomplete

    if more or shell not in SHELLS:
        typed = ' '.join(['--completion', shell, *more])
        _refuse(typed, shell, [*SHELLS], f'name one of {", ".join(SHELLS)}')
    print(argcomplete.shellcode(['xcit'], shell=shell))


def _complete() -> NoReturn:
    """Answer a shell that asks how the line may continue, and exit."""
    import argcomplete

    line = os.environ['COMP_LINE'][: int(os.environ['COMP_POINT'])]
    typed = line.split()[1:]
    tool = SHIPPED['tools']().get(typed[0].replace('_', '-')) if typed else None
    if tool is None or (len(typed) == 1 and not line.endswith(' ')):
        parser = argparse.ArgumentParser(prog='xcit')
        parser.add_argument('--completion', choices=SHELLS)
        parser.add_argument('--version', action='store_true')
        parser.add_argument('command', choices=_commands())
        if typed and typed[0] == 'configs':
            parser.add_argument('name', choices=_configs())
        argcomplete.autocomplete(parser)
        sys.exit()

    def answer(parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        for action in parser._actions:
            if action.dest == 'config':
                action.completer = _complete_config
        argcomplete.autocomplete(parser)
        sys.exit()

    os.environ['_ARGCOMPLETE'] = '2'  # the words before the arguments: xcit and the command
    argparse.ArgumentParser.parse_args = answer
    _run(tool, typed[0], [])
    sys.exit()


def _complete_config(prefix: str, **_: object) -> Iterable[str]:
    from argcomplete.completers import FilesCompleter

    return [*_configs(), *FilesCompleter(('py',))(prefix)]


if __name__ == '__main__':
    main()
