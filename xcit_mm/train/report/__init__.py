"""Curves, pictures and metrics of runs on one page."""

from .page import write_page
from .plots import draw_png
from .reading import NoRunError, Run, read_run, read_runs

__all__ = ['NoRunError', 'Run', 'draw_png', 'read_run', 'read_runs', 'write_page']
