"""File formats of exports: the file with the name of a format defines ``FORMAT``."""

from pathlib import Path

from ....base.environment import quiet
from ....base.errors import UserError, reason
from . import aotinductor, onnx, openvino, torch
from .format import Format, Runtime

BY_NAME: dict[str, Format] = dict(
    onnx=onnx.FORMAT,
    openvino=openvino.FORMAT,
    torch=torch.FORMAT,
    aotinductor=aotinductor.FORMAT,
)


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
    suffixes = dict.fromkeys(format.suffix for format in BY_NAME.values())
    if not path.is_file() or path.suffix not in suffixes:
        raise UserError(f'{path} is not a file of tools/export.py ({", ".join(suffixes)})')
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
