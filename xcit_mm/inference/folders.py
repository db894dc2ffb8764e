"""The images and videos in a folder."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import printable
from ..file_headers import MAX_TEXT
from ..files import open_regular
from ..scenes.rasters import RASTERS
from ..scenes.slides import SLIDES
from ..scenes.virtual_rasters import VIRTUAL
from ..scenes.zarr_metadata import ZARR

# A file that is named itself may have any suffix.
PHOTOS = ('.bmp', '.gif', '.jpeg', '.jpg', '.pgm', '.png', '.ppm', '.webp')
IMAGES = (*PHOTOS, *RASTERS, *SLIDES, *VIRTUAL)
VIDEOS = ('.avi', '.m4v', '.mkv', '.mov', '.mp4', '.mpeg', '.mpg', '.webm', '.wmv')
MIRAX, DICOM, HAMAMATSU = '.mrxs', '.dcm', ('.vms', '.vmu')  # slides of several files
PART = re.compile(rb'(?m)^[^=\n]*=\s*(.*?)\s*$')  # a value in the text of a Hamamatsu slide
MAX_SUFFIXES = 5  # in a sentence


class Folder:
    """The images and videos below a folder, which are found while it is iterated over.

    A folder ``.zarr`` is one image. The files of a slide are one image: the folder of a MIRAX
    slide, the pictures that a Hamamatsu slide names, and all DICOM files of a folder.

    Args:
        path: The folder.
        is_output: Tells which paths to skip.
        report: Gets the errors of folders that cannot be read.

    Attributes:
        skipped: The number of other files, by suffix.
    """

    def __init__(
        self,
        path: Path,
        is_output: Callable[[Path], bool],
        report: Callable[[OSError], None],
    ) -> None:
        self.path, self.skipped = path, Counter()
        self._is_output, self._report = is_output, report

    def __iter__(self) -> Iterator[Path]:
        for parent, folders, files in os.walk(self.path, onerror=self._report):
            folder = Path(parent)
            names = sorted(name for name in folders if name[0] != '.')
            names = [name for name in names if not self._is_output(folder / name)]
            files = sorted(name for name in files if name[0] != '.')
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
                    self.skipped[Path(name).suffix.lower() or 'no suffix'] += 1

    def note(self) -> str | None:
        """Return a sentence on the files that were skipped, or None if there are none."""
        count = self.skipped.total()
        if not count:
            return None
        kinds = [kind for kind, _ in self.skipped.most_common()]
        more = ', ...' if len(kinds) > MAX_SUFFIXES else ''
        what = (
            '1 file that is no image or video was'
            if count == 1
            else (f'{count} files that are no images or videos were')
        )
        return printable(f'{self.path}: {what} skipped ({", ".join(kinds[:MAX_SUFFIXES])}{more})')


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
