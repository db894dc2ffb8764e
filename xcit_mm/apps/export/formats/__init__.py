"""File formats of exports: a file with the name of a format in ``choices`` defines ``FORMAT``."""

from importlib import import_module
from pathlib import Path

from ....base.environment import quiet
from ....base.errors import UserError, list_folder_hint, reason
from ..choices import FORMATS
from .format import Format, Runtime

BY_NAME: dict[str, Format] = {name: import_module(f'.{name}', __name__).FORMAT for name in FORMATS}


def format_of(path: Path) -> Format:
    """Return the format of an exported file."""
    return next(f for f in BY_NAME.values() if f.suffix == path.suffix and f.holds(path))


def load_runtime(path: str | Path, trusted: bool = False) -> Runtime:
    """Load an exported file.

    It computes on the CPU, with as many threads as PyTorch has (``torch.get_num_threads``).

    Args:
        path: A file that :func:`xcit_mm.apps.export.export` has written.
        trusted: Run the code in a .pt2 file, without which PyTorch cannot load it.

    Raises:
        UserError: If the file does not exist, has another suffix than .onnx, .xml or .pt2, cannot
            be read, or could run code.
        DependencyError: If the package that runs it is missing.
    """
    path = Path(path)
    if not path.is_file():
        why = 'is not a file' if path.exists() else f'does not exist{list_folder_hint(path)}'
        raise UserError(f'{path} {why}: name a file of tools/export.py')
    suffixes = dict.fromkeys(format.suffix for format in BY_NAME.values())
    if path.suffix not in suffixes:
        raise UserError(f'{path}: the suffix of an exported file is one of {", ".join(suffixes)}')
    try:
        format = format_of(path)
        if format.runs_code and not trusted:
            raise UserError(
                f'{path} can run any code when it is loaded; if you trust its source, pass '
                '--trust-checkpoint (trusted=True in load_runtime)'
            )
        with quiet():
            return format.read(path)
    except UserError:
        raise
    except Exception as error:  # each runtime has its own
        raise UserError(f'{path} cannot be read ({reason(error)}): export it again') from error
