"""The images and videos in a folder."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from ..base.files import open_regular
from ..base.finder import IMAGE_SUFFIXES, ZARR, LeftOut, in_order, walk
from ..data.tiff.file_headers import MAX_TEXT
from ..large.files.rasters import RASTERS
from ..large.files.slides import SLIDES
from ..large.files.virtual_rasters import VIRTUAL

# A file that is named itself may have any suffix.
IMAGES = (*IMAGE_SUFFIXES, *RASTERS, *SLIDES, *VIRTUAL)
VIDEOS = ('.avi', '.m4v', '.mkv', '.mov', '.mp4', '.mpeg', '.mpg', '.webm', '.wmv')
MIRAX, DICOM, HAMAMATSU = '.mrxs', '.dcm', ('.vms', '.vmu')  # slides of several files
PART = re.compile(rb'(?m)^[^=\n]*=\s*(.*?)\s*$')  # a value in the text of a Hamamatsu slide


class Folder:
    """The images and videos below a folder, which are found while it is iterated over.

    A folder ``.zarr`` is one image. The files of a slide are one image: the folder of a MIRAX
    slide, the pictures that a Hamamatsu slide names, and all DICOM files of a folder.

    Args:
        path: The folder.
        is_output: Tells which paths to skip.
        report: Gets the errors of folders that cannot be read.

    Attributes:
        left: What was skipped.
    """

    def __init__(
        self,
        path: Path,
        is_output: Callable[[Path], bool],
        report: Callable[[OSError], None],
    ) -> None:
        self.path, self.left = path, LeftOut()
        self._is_output, self._report = is_output, report

    def __iter__(self) -> Iterator[Path]:
        for folder, folders, files in walk(self.path, self.left, self._report):
            names = [name for name in folders if not self._is_output(folder / name)]
            slides = {Path(n).stem for n in files if n.lower().endswith(MIRAX)}
            arrays = [name for name in names if name.lower().endswith(ZARR)]
            folders[:] = [name for name in names if name not in {*slides, *arrays}]
            parts = _parts_of_slides(folder, files)
            for name in sorted([*arrays, *files]):
                if name in parts:
                    continue
                if name in arrays or name.lower().endswith(IMAGES + VIDEOS):
                    yield folder / name
                else:
                    self.left.others[Path(name).suffix.lower()] += 1

    def notes(self) -> list[str]:
        """Return sentences on what was skipped: hidden images and folders, and other files."""
        hidden = LeftOut(self.left.hidden).sentence(self.path)
        count = self.left.others.total()
        what = f'{count} files that are not images or videos were'
        what = '1 file that is not an image or a video was' if count == 1 else what
        others = f'{self.path}: {what} skipped ({in_order(self.left.others)})' if count else ''
        return [note for note in (hidden, others) if note]


def _parts_of_slides(folder: Path, files: list[str]) -> set[str]:
    """Return the files that belong to a slide of another file."""
    parts = set([name for name in files if name.lower().endswith(DICOM)][1:])
    for name in files:
        if name.lower().endswith(HAMAMATSU):
            try:
                with open_regular(folder / name) as file:
                    text = file.read(MAX_TEXT)
            except OSError:  # reported when the slide is read
                continue
            parts |= {os.fsdecode(value) for value in PART.findall(text)}
    return parts


def is_input(name: str) -> bool:
    """Return whether a path or URL is that of images or a video, and not of a model."""
    path = Path(name).expanduser()
    if not path.is_dir():
        return name.lower().endswith(IMAGES + VIDEOS)
    folder = Folder(path, lambda path: False, lambda error: None)
    return not (path / 'config.json').exists() and next(iter(folder), None) is not None
