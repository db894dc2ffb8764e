from .curves import draw_png
from .page import write_page
from .reading import Run, read_run, read_runs

__all__ = ['Run', 'draw_png', 'read_run', 'read_runs', 'write_page']
