"""Processes on a stand-in for Windows; see other_system/sitecustomize.py."""

import os
import subprocess
import sys
from pathlib import Path

from . import ROOT

FOLDER = Path(__file__).with_name('other_system')


def start(*arguments: object) -> subprocess.Popen:
    """Start Python there in the root of the repository, in a process group of its own."""
    path = os.pathsep.join(map(str, (FOLDER, ROOT, ROOT / 'tests')))
    env = os.environ | dict(PYTHONPATH=path, PYTHONIOENCODING='cp1252', OMP_NUM_THREADS='1')
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace')
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, **pipes)


def run(*arguments: object) -> str:
    """Run Python there, and return what it prints."""
    process = start(*arguments)
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    return printed
