"""The files below a folder, for every part of the package that looks for images or labels.

Linked folders are followed. Hidden files and folders are left out: Jupyter, macOS, Windows and
network drives keep copies and thumbnails of images there.
"""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NoReturn
from unicodedata import normalize
from urllib.parse import unquote

from .errors import UserError

# Suffixes of the images that `data/transforms/decode.py` reads.
IMAGE_SUFFIXES = (
    *('.apng', '.avif', '.bmp', '.dib', '.gif', '.j2k', '.jfif', '.jp2', '.jpe', '.jpeg', '.jpf'),
    *('.jpg', '.jpx', '.mpo', '.pbm', '.pgm', '.png', '.pnm', '.ppm', '.tga', '.tif', '.tiff'),
    '.webp',
)
# Hidden names, besides those that start with a dot, in lower case.
HIDDEN = ('__macosx', '@eadir', '#recycle', '$recycle.bin', 'thumbs.db', 'desktop.ini')
# Suffixes of labels, and of files that belong to images. These files are not reported.
BESIDE = (
    *('.aux', '.cache', '.csv', '.geojson', '.gpkg', '.json', '.md', '.ovr', '.prj', '.tfw'),
    *('.txt', '.wld', '.xml', '.yaml', '.yml'),
)
ZARR = '.zarr'  # a folder that is one image
MAX_LISTED = 5  # suffixes in a sentence


@dataclass
class LeftOut:
    """What a search has left out: hidden paths, and the number of other files by suffix."""

    hidden: list[Path] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)

    def remarks(self) -> dict[str, int]:
        """Return a sentence for each reason, and the number of files."""
        hidden = [p for p in self.hidden if p.suffix.lower() in IMAGE_SUFFIXES or p.is_dir()]
        others = Counter({s: n for s, n in self.others.items() if s not in BESIDE})
        remarks = {}
        if hidden:
            remarks[f'Hidden files and folders, such as {hidden[0]}, left out'] = len(hidden)
        if others:
            remarks[f'Files of other types ({in_order(others)}), left out'] = others.total()
        return remarks

    def sentence(self, folder: Path) -> str:
        """Return the remarks on a folder, or ''."""
        remarks = '; '.join(f'{remark}: {count}' for remark, count in self.remarks().items())
        return f'{folder}: {remarks}' if remarks else ''


def in_order(suffixes: Counter[str]) -> str:
    """Return the most frequent suffixes of files, as part of a sentence."""
    listed = [suffix or 'no suffix' for suffix, _ in suffixes.most_common()]
    return ', '.join(listed[:MAX_LISTED]) + ', ...' * (len(listed) > MAX_LISTED)


def is_hidden(name: str) -> bool:
    """Return whether a file or folder with this name is hidden."""
    return name.startswith('.') or name.lower() in HIDDEN


def _refuse(error: OSError) -> NoReturn:
    raise UserError(f'the folder {error.filename} cannot be read ({error.strerror})') from None


def walk(
    root: Path, left: LeftOut | None = None, onerror: Callable[[OSError], object] = _refuse
) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield each folder with the names of its folders and its files, as ``os.walk`` does.

    The names are sorted, and the caller may remove folders from their list. A folder that is
    linked several times, or inside itself, is read once, under its own name if it is below the
    root. Links to a folder that contains the root are not followed.
    """
    pending, seen = deque([Path(root)]), {*map(str, Path(os.path.realpath(root)).parents)}
    while pending:
        for parent, folders, files in os.walk(pending.popleft(), onerror=onerror):
            folder, place = Path(parent), os.path.realpath(parent)
            if place in seen:
                folders.clear()
                continue
            seen.add(place)
            if left is not None:
                left.hidden += [folder / name for name in (*folders, *files) if is_hidden(name)]
            folders[:] = sorted(name for name in folders if not is_hidden(name))
            yield folder, folders, sorted(name for name in files if not is_hidden(name))
            # os.walk itself enters the folders that are not links.
            paths = [folder / name for name in folders]
            pending += [p for p in paths if os.path.realpath(p) != str(Path(place, p.name))]


def find_files(
    root: Path, suffixes: Sequence[str] = IMAGE_SUFFIXES, left: LeftOut | None = None
) -> Iterator[Path]:
    """Yield the files below a folder whose names end in one of the suffixes, in any case.

    A folder ``.zarr`` counts as a file.

    Raises:
        UserError: If a folder cannot be read.
    """
    ends = tuple(suffix.lower() for suffix in suffixes)
    for folder, folders, files in walk(root, left):
        arrays = [name for name in folders if name.lower().endswith(ZARR)]
        folders[:] = [name for name in folders if name not in arrays]
        for name in sorted([*arrays, *files]):
            if name.lower().endswith(ends):
                yield folder / name
            elif left is not None:
                left.others[Path(name).suffix.lower()] += 1


def images_beside(files: Iterable[Path]) -> list[Path]:
    """Return the images that lie in the folders of ``files`` and are not among the files."""
    files = {*files}
    folders = {file.parent for file in files if file.parent.is_dir()}
    images = (path for folder in sorted(folders) for path in sorted(folder.iterdir()))
    images = (path for path in images if path.name.lower().endswith(IMAGE_SUFFIXES))
    return [path for path in images if path not in files and not is_hidden(path.name)]


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder in alphabetical order, without hidden ones."""
    _, folders, _ = next(walk(folder))
    return [Path(folder, name) for name in folders]


def same_name(name: str) -> str:
    """Return a form of a name that is the same for all of its spellings.

    macOS composes letters such as ä of two characters, URLs encode characters with percent signs,
    Windows separates folders with backslashes, and both systems ignore case.
    """
    return normalize('NFC', unquote(name).replace('\\', '/')).casefold()


def find_spelled(path: Path, suffixes: Sequence[str] = ('',)) -> list[Path]:
    """Return the path if it exists, or else the paths whose names are spelled differently.

    Each of the ``suffixes`` is tried at the end of the name.
    """
    if suffixes == ('',) and os.path.exists(path):  # noqa: PTH110  Path.exists raises
        return [path]
    if path == path.parent:
        return []
    if len((plain := Path(unquote(path.name).replace('\\', '/').lstrip('/'))).parts) > 1:
        return find_spelled(path.parent / plain, suffixes)
    return [
        folder / name
        for folder in find_spelled(path.parent)
        for suffix in suffixes
        for name in _names_in(folder).get(same_name(path.name) + suffix, ())
    ]


def spelled(path: Path) -> Path:
    """Return the only path that :func:`find_spelled` finds, or else the path itself."""
    paths = find_spelled(path)
    return paths[0] if len(paths) == 1 else path


def _names_in(folder: Path) -> dict[str, list[str]]:
    try:
        return _listed(str(folder), folder.stat().st_mtime_ns)
    except OSError:
        return {}


@lru_cache(maxsize=256)
def _listed(folder: str, changed: int) -> dict[str, list[str]]:
    """Return the names in a folder by their :func:`same_name`."""
    names: dict[str, list[str]] = {}
    for path in sorted(Path(folder).iterdir()):
        names.setdefault(same_name(path.name), []).append(path.name)
    return names
