"""Descriptor files: NumPy with a JSON file of names, or Parquet."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...base.errors import UserError, reason
from ...base.files import write_json, write_whole

NUMPY, _ = SUFFIXES = '.npy', '.parquet'


class Described(NamedTuple):
    """Images and their descriptors."""

    names: list[str]  # paths or URLs
    sizes: list[tuple[int, int] | None]  # (H, W) in pixels
    vectors: np.ndarray  # (n, D) in float32, of length 1


def names_of(path: Path) -> Path:
    """Return the path of the file with the names for a NumPy file."""
    return path.with_suffix('.json')


def write_descriptors(path: Path, described: Described) -> None:
    """Write descriptors. Each file is written whole or not at all."""
    if path.suffix.lower() == NUMPY:
        with write_whole(path) as file:
            np.save(file, described.vectors, allow_pickle=False)
        write_json(names_of(path), dict(names=described.names))
        return
    import pyarrow
    from pyarrow import parquet

    n, dim = described.vectors.shape
    heights, widths = zip(*described.sizes, strict=True)
    flat = pyarrow.array(described.vectors.reshape(n * dim))
    table = pyarrow.table(
        dict(
            name=pyarrow.array([_text(name) for name in described.names]),
            width=pyarrow.array(widths, pyarrow.int32()),
            height=pyarrow.array(heights, pyarrow.int32()),
            descriptor=pyarrow.FixedSizeListArray.from_arrays(flat, dim),
        )
    )
    with write_whole(path) as file:
        parquet.write_table(table, file)


def read_descriptors(path: Path) -> Described:
    """Read a file written by :func:`write_descriptors`.

    Raises:
        UserError: If the file does not contain descriptors with names.
    """
    try:
        if path.suffix.lower() == NUMPY:
            vectors = np.load(path, allow_pickle=False)
            names = json.loads(names_of(path).read_text('utf-8', 'surrogateescape'))['names']
            return Described(names, [None] * len(names), vectors)
        from pyarrow import parquet

        table = parquet.read_table(path)
        vectors = table['descriptor'].combine_chunks().flatten().to_numpy()
        sizes = zip(table['height'].to_pylist(), table['width'].to_pylist(), strict=True)
        return Described(table['name'].to_pylist(), list(sizes), vectors.reshape(len(table), -1))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f'--index {path} cannot be read ({reason(error)}): name a file that --out has written'
        ) from None


def _text(name: str) -> str:
    """Replace the bytes of a file name that are not valid text."""
    return name.encode(errors='surrogateescape').decode(errors='replace')
