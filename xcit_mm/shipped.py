"""The folders of configs and tools, which a wheel holds and a clone has next to the package."""

from pathlib import Path

PACKAGE = Path(__file__).parent


def shipped(name: str) -> Path:
    """Return the folder ``configs`` or ``tools``.

    It is in ``.mim``, where OpenMMLab's mim looks. A clone has links there, but where git may make
    none, as on Windows, it writes their targets into files.
    """
    folder = PACKAGE / '.mim' / name
    return folder if folder.is_dir() else PACKAGE.parent / name
