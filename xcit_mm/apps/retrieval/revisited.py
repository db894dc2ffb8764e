"""Revisited Oxford and Paris (arXiv 1803.11285) in their original file layout."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import UserError, one_line, reason
from ...base.files import read_regular
from ...network.weights.pickles import UnreadableError
from .plain_pickle import read_plain
from .ranking import Benchmark, Box, Judgment

SIZES = dict(roxford5k=(4993, 70), rparis6k=(6322, 70))  # number of images and of queries
MAX_BYTES = 2**26  # per ground truth; the published files are smaller than 1 MB
# For each setting, the lists of the ground truth that are positives, and the lists that are junk.
SETTINGS = dict(
    easy=(('easy',), ('junk', 'hard')),
    medium=(('easy', 'hard'), ('junk',)),
    hard=(('hard',), ('junk', 'easy')),
)


def read_revisited(name: str, folder: Path) -> Benchmark:
    """Read the ground truth ``gnd_NAME.pkl`` in a folder, with the images in its folder ``jpg``.

    Args:
        name: 'roxford5k' or 'rparis6k'.
        folder: The folder.

    Raises:
        UserError: If the ground truth is missing, is not plain data or is inconsistent, or if
            images are missing.
    """
    path = folder / f'gnd_{name}.pkl'
    try:
        content = read_plain(read_regular(path, MAX_BYTES))
    except OSError as error:
        raise UserError(
            f'the ground truth {path} cannot be read ({reason(error)}): name the folder of the '
            f'benchmark, which holds it beside the folder jpg'
        ) from None
    except UnreadableError as error:
        raise _invalid(path, str(error)) from None
    images, queries, rows = _lists(path, content)
    judged: dict[str, list[Judgment]] = {setting: [] for setting in SETTINGS}
    boxes: list[Box] = []
    for query, row in zip(queries, rows, strict=True):
        kinds = _kinds(path, query, row, len(images))
        boxes.append(_box(path, query, row.get('bbx')))
        for setting, (positive, junk) in SETTINGS.items():
            judged[setting].append(
                Judgment(
                    [index for kind in positive for index in kinds[kind]],
                    [index for kind in junk for index in kinds[kind]],
                )
            )
    files = [[str(folder / 'jpg' / f'{n}.jpg') for n in names] for names in (images, queries)]
    missing = [file for file in dict.fromkeys([*files[0], *files[1]]) if not Path(file).is_file()]
    if missing:
        raise UserError(
            f'{missing[0]} is missing ({len(missing)} images of {path} are): put all images of the '
            'benchmark into that folder'
        )
    is_whole = (len(images), len(queries)) == SIZES[name]
    return Benchmark(files[0], files[1], judged, boxes, is_whole)


def _lists(path: Path, content: Any) -> tuple[list[str], list[str], list[dict]]:
    """Return the names of the images and of the queries, and the ground truth of each query."""
    if type(content) is not dict:
        raise _invalid(path, 'it holds no dict')
    lists = [content.get(name) for name in ('imlist', 'qimlist', 'gnd')]
    for key, values, kind in zip(
        ('imlist', 'qimlist', 'gnd'), lists, (str, str, dict), strict=True
    ):
        if type(values) is not list or not values or any(type(v) is not kind for v in values):
            raise _invalid(path, f'{key} is no list of {kind.__name__}')
    images, queries, rows = lists
    if len(queries) != len(rows):
        raise _invalid(path, f'it has {len(queries)} queries, but {len(rows)} rows in gnd')
    for name in (*images, *queries):
        if Path(name).name != name or '\0' in name or '\\' in name:
            raise _invalid(path, f'{one_line(name)!r} is no name of an image')
    return images, queries, rows


def _kinds(path: Path, query: str, row: dict, num_images: int) -> dict[str, list[int]]:
    """Return the lists easy, hard and junk of a query. They have no image in common."""
    kinds = {}
    for kind in ('easy', 'hard', 'junk'):
        values = _flat(row.get(kind))
        if values is None or any(int(v) != v or not 0 <= v < num_images for v in values):
            raise _invalid(
                path, f'{kind} of {one_line(query)} is no list of numbers below {num_images}'
            )
        kinds[kind] = [int(value) for value in values]
    every = [index for indices in kinds.values() for index in indices]
    if len(set(every)) != len(every):
        raise _invalid(path, f'an image occurs twice for {one_line(query)}')
    return kinds


def _box(path: Path, query: str, values: Any) -> Box:
    box = _flat(values)
    if box is None or len(box) != 4 or not (box[0] < box[2] and box[1] < box[3]):
        raise _invalid(path, f'bbx of {one_line(query)} is not left, top, right and bottom')
    left, top, right, bottom = map(float, box)
    return left, top, right, bottom


def _flat(values: Any) -> Sequence[float] | None:
    """Return the finite numbers in a list, tuple or 1D array, or None for anything else."""
    if isinstance(values, np.ndarray):
        values = values.tolist() if values.ndim == 1 else None
    if not isinstance(values, (list, tuple)):
        return None
    is_number = all(isinstance(v, (int, float, np.integer, np.floating)) for v in values)
    return values if is_number and np.isfinite([float(v) for v in values]).all() else None


def _invalid(path: Path, why: str) -> UserError:
    return UserError(
        f'{path} is not the ground truth of the benchmark ({why}): download it again from its '
        'authors'
    )
