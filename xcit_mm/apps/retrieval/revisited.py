"""Revisited Oxford and Paris (arXiv 1803.11285) in their original file layout."""

import io
import pickle
from codecs import encode
from pathlib import Path
from typing import Any

from ...base.errors import UserError, reason
from ...base.files import read_regular
from ...network.weights.pickles import ARRAYS
from .ranking import Benchmark, Judgment

SIZES = dict(roxford5k=(4993, 70), rparis6k=(6322, 70))  # number of images and of queries
MAX_BYTES = 2**26  # per ground truth; the published files are smaller than 1 MB
# For each setting, the lists of the ground truth that are positives, and the lists that are junk.
SETTINGS = dict(
    easy=(('easy',), ('junk', 'hard')),
    medium=(('easy', 'hard'), ('junk',)),
    hard=(('hard',), ('junk', 'easy')),
)
VALUES = ARRAYS | {'_codecs.encode': encode}  # of bytes in old protocols


class PlainUnpickler(pickle.Unpickler):
    """An unpickler of numbers, text, lists, dicts and arrays, which calls nothing of a file.

    PyTorch's own with ``weights_only`` reads one of the five protocols.
    """

    def find_class(self, module: str, name: str) -> Any:
        if f'{module}.{name}' not in VALUES:
            raise pickle.UnpicklingError(f'it names {module}.{name}, which could run code')
        return VALUES[f'{module}.{name}']


def read_revisited(name: str, folder: Path) -> Benchmark:
    """Read the ground truth ``gnd_NAME.pkl`` in a folder, with the images in its folder ``jpg``.

    Args:
        name: 'roxford5k' or 'rparis6k'.
        folder: The folder.

    Raises:
        UserError: If the ground truth cannot be read.
    """
    path = folder / f'gnd_{name}.pkl'
    try:
        stream = io.BytesIO(read_regular(path, MAX_BYTES))
        content = PlainUnpickler(stream, encoding='latin1').load()  # that of Python 2
        images, queries = (_files(folder, content[key]) for key in ('imlist', 'qimlist'))
        judged: dict[str, list[Judgment]] = {setting: [] for setting in SETTINGS}
        boxes = []
        for row in content['gnd']:
            left, top, right, bottom = map(float, row['bbx'])
            boxes.append((left, top, right, bottom))
            for setting, kinds in SETTINGS.items():
                lists = ([int(i) for kind in part for i in row[kind]] for part in kinds)
                judged[setting].append(Judgment(*lists))
    except Exception as error:  # pickles fail in many ways
        raise UserError(
            f'the ground truth {path} cannot be read ({reason(error)}): name the folder of the '
            'benchmark, in which it lies with the folder jpg, or download it again'
        ) from None
    is_whole = (len(images), len(queries)) == SIZES[name]
    return Benchmark(images, queries, judged, boxes, is_whole)


def _files(folder: Path, names: list[str]) -> list[str]:
    for name in names:
        if Path(name).name != name:  # another folder
            raise ValueError(f'{name!r} is not the name of an image')
    return [str(folder / 'jpg' / f'{name}.jpg') for name in names]
