"""What a command line names, as a list of images and videos, each with a name of its own."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from glob import glob, has_magic
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from ..errors import reason
from ..weights.download import is_url
from .places import is_written
from .reading import expand_user

# What is taken of a folder; a file that is named itself may be called anything.
IMAGES = ('.bmp', '.gif', '.jp2', '.jpeg', '.jpg', '.pgm', '.png', '.ppm', '.tif', '.tiff', '.webp')
VIDEOS = ('.avi', '.m4v', '.mkv', '.mov', '.mp4', '.mpeg', '.mpg', '.webm', '.wmv')
LONGEST = 150  # bytes of a name: file systems take 255, with what is added to it


@dataclass(frozen=True)
class Input:
    """An image or a video.

    Attributes:
        source: Its path or URL.
        name: What the files of its predictions are called, without suffix: its path below the
            folder that was named, or the name of the file alone.
    """

    source: str
    name: PurePosixPath

    @property
    def is_video(self) -> bool:
        path = urlsplit(self.source).path if is_url(self.source) else self.source
        return path.lower().endswith(VIDEOS)


def find_inputs(named: Sequence[str], out: Path) -> tuple[list[Input], list[str]]:
    """List the images and videos behind paths, folders, patterns and URLs.

    Folders, and those that are linked in them, are searched to any depth for files with the suffix
    of an image or video, except what is hidden or in ``out``; of ``out`` itself, if it is one of
    those named, earlier predictions are left out. A file that is named in several ways is taken
    once, and no two inputs get the same name.

    Args:
        named: As typed.
        out: Where the predictions go.

    Returns:
        The inputs in the order in which they are named, those of a folder by their names, and
        sentences on what holds none.
    """
    by_place: dict[str, Input] = {}
    problems: list[str] = []
    for text in named:
        is_empty, known = True, len(problems)
        for one in _expand(text, out, problems):
            is_empty = False
            place = one.source if is_url(one.source) else os.path.realpath(one.source)
            by_place.setdefault(place, one)
        if is_empty and len(problems) == known:
            holds = 'holds no image or video' if Path(text).is_dir() else 'matches no file'
            problems.append(f'{text} {holds}')
    return _with_different_names(list(by_place.values())), problems


def _expand(text: str, out: Path, problems: list[str]) -> Iterator[Input]:
    path = expand_user(text)
    if is_url(text):
        try:
            parts = urlsplit(text)
        except ValueError as error:
            problems.append(f'{text} is no web address ({error})')
            return
        yield Input(text, _name(unquote(PurePosixPath(parts.path).stem) or parts.netloc))
    elif has_magic(text) and not path.exists():
        matches = glob(str(path), recursive=True)  # noqa: PTH207  Path.glob takes no absolute one
        for match in map(Path, sorted(matches)):
            if not is_written(match, out):
                yield from _of_path(match, out, problems)
    else:
        yield from _of_path(path, out, problems)


def _of_path(path: Path, out: Path, problems: list[str]) -> Iterator[Input]:
    if not path.is_dir():
        yield Input(str(path), _name(path.stem))
        return

    def report(error: OSError) -> None:
        problems.append(f'the folder {error.filename} cannot be read ({reason(error)})')

    visited = {out.resolve()} - {path.resolve()}
    for folder, folders, files in os.walk(path, onerror=report, followlinks=True):
        place = Path(folder).resolve()
        if place in visited:  # a link may lead to where it is
            folders.clear()
            continue
        visited.add(place)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith('.') and not is_written(Path(folder, name), out)
        )
        below = PurePosixPath(Path(folder).relative_to(path).as_posix())
        for name in sorted(files):
            if name.lower().endswith(IMAGES + VIDEOS) and not name.startswith('.'):
                yield Input(str(Path(folder, name)), below / _name(Path(name).stem))


def _name(stem: str) -> PurePosixPath:
    """A stem as the name of a file, whatever is in it."""
    shortened = stem.encode(errors='replace')[:LONGEST].decode(errors='ignore')
    return PurePosixPath(shortened.replace('/', '_').strip('.') or 'image')


def _with_different_names(inputs: Sequence[Input]) -> list[Input]:
    """Number those whose name another has, or that is a folder of another."""
    taken = {_key(folder) for one in inputs for folder in one.name.parents}
    named = []
    for one in inputs:
        name, number = one.name, 1
        while _key(name) in taken:
            number += 1
            name = one.name.with_name(f'{one.name.name}_{number}')
        taken.add(_key(name))
        named.append(replace(one, name=name))
    return named


def _key(name: PurePosixPath) -> str:
    return str(name).casefold()  # one file for some systems
