"""INRIA Holidays: groups of photographs of the same scene, numbered in their file names."""

import re
from pathlib import Path

from ...base.errors import UserError
from ...base.finder import subfolders
from .ranking import Benchmark, Judgment

GROUP = 100  # numbers per group
NAME = '[0-9]{6}'
SIZE = 1491, 500  # number of images and of queries


def read_holidays(folder: Path) -> Benchmark:
    """Find the images ``NUMBER.jpg`` in a folder, or in its subfolder ``jpg``.

    Images with the same ``NUMBER // 100`` are a group. The first image of a group is the query and
    the others are its positives. The query is junk in its own ranking.

    Raises:
        UserError: If there are no images, a name is not a number, or no group has two images.
    """
    if 'jpg' in [path.name for path in subfolders(folder)]:
        folder = folder / 'jpg'
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() == '.jpg')
    if not paths:
        raise UserError(
            f'{folder} holds no image of Holidays, such as 100000.jpg: name the folder that they '
            'are in'
        )
    for path in paths:
        if not re.fullmatch(NAME, path.stem):
            raise UserError(
                f'{path} is no image of Holidays, whose names are numbers such as 100000.jpg: '
                'move it away'
            )
    paths.sort(key=lambda path: int(path.stem))
    groups: dict[int, list[int]] = {}
    for index, path in enumerate(paths):
        groups.setdefault(int(path.stem) // GROUP, []).append(index)
    if len(groups) == len(paths):
        raise UserError(
            f'{folder} holds no two images of the same group, such as 100000.jpg and 100001.jpg: '
            'add the other images of Holidays'
        )
    names = [str(path) for path in paths]
    judgments = [Judgment(others, [query]) for query, *others in groups.values()]
    queries = [names[query] for query, *_ in groups.values()]
    return Benchmark(
        names, queries, dict(all=judgments), is_whole=(len(names), len(queries)) == SIZE
    )
