"""A tool in this process, which needs no new one where a test looks at its exit code only."""

import logging
import runpy
import sys

from helpers import ROOT


def call_tool(monkeypatch, capfd, name: str, *args: object) -> tuple[int, str, str]:
    """Return the exit code of a tool, and what it prints to stdout and to stderr."""
    monkeypatch.setattr(sys, 'argv', [name, *map(str, args)])
    monkeypatch.setattr(sys, 'path', list(sys.path))  # to which the tools add
    monkeypatch.setattr(logging, 'raiseExceptions', logging.raiseExceptions)
    capfd.readouterr()
    code = 0
    try:
        runpy.run_path(str(ROOT / 'tools' / name), run_name='__main__')
    except SystemExit as end:
        code = end.code
    return code, *capfd.readouterr()
