from .curves import draw_png
from .page import write_page
from .reading import NoRunError, Run, read_run, read_runs

__all__ = ['NoRunError', 'Run', 'draw_png', 'read_run', 'read_runs', 'write_page']
