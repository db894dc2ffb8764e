"""What the folder of the predictions holds."""

from pathlib import Path

from ..files import EARLIER

PICTURES = 'pictures'
PREDICTIONS = 'predictions.json'
LABELS = 'labels'
CLASSES = 'classes.json'
WRITTEN = (PICTURES, PREDICTIONS, LABELS, CLASSES)


def is_written(path: Path, folder: Path) -> bool:
    """Whether a path is of predictions in the folder, these or earlier ones.

    Args:
        path: Of a file or folder.
        folder: Of the predictions.
    """
    path, folder = path.resolve(), folder.resolve()
    if not path.is_relative_to(folder) or path == folder:
        return False
    name = path.relative_to(folder).parts[0]
    return name in WRITTEN or name.startswith(EARLIER)
