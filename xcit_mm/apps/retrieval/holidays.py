"""INRIA Holidays: groups of photographs of the same scene, numbered in their file names."""

from pathlib import Path

from ...base.errors import UserError
from .ranking import Benchmark, Judgment

GROUP = 100  # numbers per group
SIZE = 1491, 500  # number of images and of queries


def read_holidays(folder: Path) -> Benchmark:
    """Find the images ``NUMBER.jpg`` in a folder, or in its subfolder ``jpg``.

    Images with the same ``NUMBER // 100`` are a group. The first image of a group is the query and
    the others are its positives. The query is junk in its own ranking.

    Raises:
        UserError: If there are no images.
    """
    if (folder / 'jpg').is_dir():
        folder = folder / 'jpg'
    paths = [p for p in folder.iterdir() if p.suffix.lower() == '.jpg' and p.stem.isdecimal()]
    if not paths:
        raise UserError(
            f'{folder} holds no image of Holidays, such as 100000.jpg: name the folder that they '
            'are in'
        )
    paths.sort(key=lambda path: int(path.stem))
    groups: dict[int, list[int]] = {}
    for index, path in enumerate(paths):
        groups.setdefault(int(path.stem) // GROUP, []).append(index)
    names = [str(path) for path in paths]
    judgments = [Judgment(others, [query]) for query, *others in groups.values()]
    queries = [names[query] for query, *_ in groups.values()]
    return Benchmark(
        names, queries, dict(all=judgments), is_whole=(len(names), len(queries)) == SIZE
    )
