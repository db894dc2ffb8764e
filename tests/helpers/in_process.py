"""A tool in this process, which spares the seconds of imports that a new one takes."""

import runpy
import sys

from helpers import ROOT


def call_tool(monkeypatch, capfd, name: str, *args: object) -> tuple[int, str, str]:
    """The exit code of a command line of ``tools``, and what it prints and says on stderr."""
    monkeypatch.setattr(sys, 'argv', [name, *map(str, args)])
    capfd.readouterr()
    tool = runpy.run_path(str(ROOT / 'tools' / name))
    try:
        tool['cli'].run_tool(tool['main'])
    except SystemExit as end:
        return end.code, *capfd.readouterr()
    return 0, *capfd.readouterr()
