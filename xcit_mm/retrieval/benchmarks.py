"""The layouts of revisited Oxford and Paris and of Holidays, and the published figures."""

import io
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..datasets.image_folders import images_below
from ..errors import UserError, reason
from ..files import read_regular
from .ranking import Relevant

REVISITED = ('roxford5k', 'rparis6k')
HOLIDAYS = 'holidays'
BENCHMARKS = (*REVISITED, HOLIDAYS)
MAX_BYTES = 2**26  # of a ground truth
# What counts as positive and as junk (arXiv 1803.11285, section 3.3).
PROTOCOLS = {
    'easy': (('easy',), ('junk', 'hard')),
    'medium': (('easy', 'hard'), ('junk',)),
    'hard': (('hard',), ('junk', 'easy')),
}
ARRAYS = {
    (f'numpy{core}.multiarray', name)
    for core in ('.core', '._core')
    for name in ('_reconstruct', 'scalar')
} | {('numpy', 'ndarray'), ('numpy', 'dtype')}
# Mean average precision in percent (paper, table D.4), class token at 768 pixels: by the start of
# the name of a released file, medium and hard of Oxford, and Holidays.
PUBLISHED = {
    'xcit_small_12_p16_384': (30.1, 8.7, 86.0),
    'xcit_small_12_p8_384': (33.2, 12.1, 86.4),
    'xcit_small_12_cp16_dino': (35.1, 11.9, 87.3),
    'xcit_small_12_cp8_dino': (30.9, 7.9, 88.3),
}


class Query(NamedTuple):
    """An image that is searched, and what it should find by protocol."""

    path: Path
    box: tuple[int, int, int, int] | None  # left, top, right, bottom of what is searched in it
    relevant: dict[str, Relevant]


class Benchmark(NamedTuple):
    """The images of a benchmark, in which each query is searched."""

    name: str
    images: list[Path]
    queries: list[Query]


def read_benchmark(name: str, folder: Path) -> Benchmark:
    """Read a benchmark in its own layout.

    Args:
        name: One of ``BENCHMARKS``.
        folder: For Oxford and Paris, the folder with ``gnd_NAME.pkl`` and ``jpg``; for Holidays,
            the folder of its images.

    Raises:
        UserError: If a file is missing, or the ground truth is damaged or holds code.
    """
    if name == HOLIDAYS:
        return _holidays(folder)
    path = folder / f'gnd_{name}.pkl'
    content = read_plain_pickle(path)
    try:
        images = [folder / 'jpg' / f'{stem}.jpg' for stem in content['imlist']]
        queries = [
            Query(folder / 'jpg' / f'{stem}.jpg', _box(truth), _relevant(truth, len(images)))
            for stem, truth in zip(content['qimlist'], content['gnd'], strict=True)
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f'{path} is not the ground truth of {name} ({reason(error)}): download it from the '
            'page of the revisited benchmark'
        ) from None
    missing = [p for p in (*images, *(q.path for q in queries)) if not p.is_file()]
    if missing:
        raise UserError(
            f'{missing[0]} is missing, one of {len(missing)}: unpack the images of {name} into '
            f'{folder / "jpg"}'
        )
    return Benchmark(name, images, queries)


def read_plain_pickle(path: Path) -> Any:
    """Read a pickle of dicts, lists, texts, numbers and NumPy arrays, and refuse everything else.

    Raises:
        UserError: If the file cannot be read, or names anything else, which could run code.
    """
    try:
        return _PlainUnpickler(io.BytesIO(read_regular(path, MAX_BYTES)), encoding='latin1').load()
    except OSError as error:
        raise UserError(
            f'{path} cannot be read ({reason(error)}): it is a part of the benchmark'
        ) from None
    except UserError as error:
        raise UserError(f'{path} {error}') from None
    except Exception as error:  # a damaged pickle can raise anything
        raise UserError(f'{path} is damaged ({reason(error)}): download it again') from None


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAYS:
            raise UserError(
                f'names {module}.{name}, which could run code: download it from the page of the '
                'benchmark'
            )
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        raise UserError('refers to something outside of it: download it again')


def _box(truth: Mapping[str, Any]) -> tuple[int, int, int, int]:
    left, top, right, bottom = (round(float(value)) for value in truth['bbx'])
    if not 0 <= left < right or not 0 <= top < bottom:
        raise ValueError(f'bbx {truth["bbx"]} is no box')
    return left, top, right, bottom


def _relevant(truth: Mapping[str, Any], number: int) -> dict[str, Relevant]:
    lists = {name: np.asarray(truth[name], int).ravel() for name in ('easy', 'hard', 'junk')}
    for name, indices in lists.items():
        if len(indices) and not 0 <= indices.min() <= indices.max() < number:
            raise ValueError(f'{name} names an image beyond the {number} images')

    def joined(names: Sequence[str]) -> list[int]:
        return np.concatenate([lists[name] for name in names]).tolist()

    return {p: Relevant(joined(of), joined(junk)) for p, (of, junk) in PROTOCOLS.items()}


def _holidays(folder: Path) -> Benchmark:
    """Read Holidays: images 1GGGNN.jpg of the group GGG; the first of a group is its query."""
    images = [p for p in images_below(folder) if re.fullmatch(r'\d{6}', p.stem)]
    groups: dict[int, list[int]] = {}
    for index, path in enumerate(images):
        groups.setdefault(int(path.stem) // 100, []).append(index)
    queries = [
        Query(images[first], None, {HOLIDAYS: Relevant(others, [first])})
        for first, *others in groups.values()
        if others
    ]
    if not queries:
        raise UserError(
            f'{folder} has no images of Holidays, which are named as 100000.jpg and 100001.jpg: '
            'name the folder with them'
        )
    return Benchmark(HOLIDAYS, images, queries)


def published(checkpoint: str, benchmark: str) -> dict[str, float]:
    """Return the mean average precisions of table D.4 for a file that is named as a release."""
    stem = Path(checkpoint).name
    row = next((row for name, row in PUBLISHED.items() if stem.startswith(name)), None)
    if row is None or benchmark == 'rparis6k':
        return {}
    medium, hard, holidays = row
    return {HOLIDAYS: holidays} if benchmark == HOLIDAYS else dict(medium=medium, hard=hard)
