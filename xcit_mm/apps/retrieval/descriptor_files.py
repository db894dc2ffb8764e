"""Descriptor files: NumPy with a JSON file of names, or Parquet."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...base.environment import require
from ...base.errors import UserError, reason
from ...base.files import require_writable_file, write_json, write_whole

NUMPY, PARQUET = SUFFIXES = '.npy', '.parquet'
MADE_WITH = 'xcit_mm'  # the key in the metadata of a Parquet file


class Described(NamedTuple):
    """Images and their descriptors.

    Vectors can be compared if they are made with the same values of ``made_with``, such as the size
    of the images and the digest of the network.
    """

    names: list[str]  # paths or URLs
    sizes: list[tuple[int, int] | None]  # (H, W) in pixels
    vectors: np.ndarray  # (n, D) in float32, of length 1
    made_with: dict[str, str]


def require_suffix(path: Path, option: str) -> None:
    """Refuse a path with another suffix, and a Parquet file if pyarrow is missing."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f'{option} {path}: the file has to end in {" or ".join(SUFFIXES)}')
    if path.suffix.lower() == PARQUET:
        require('pyarrow')


def require_out(path: Path) -> None:
    """Refuse a file that cannot be written."""
    require_suffix(path, '--out')
    require_writable_file(path)
    if path.suffix.lower() == NUMPY:
        require_writable_file(names_of(path))


def names_of(path: Path) -> Path:
    """Return the path of the file with the names for a NumPy file."""
    return path.with_suffix('.json')


def write_descriptors(path: Path, described: Described) -> None:
    """Write descriptors. Each file is written whole or not at all."""
    if path.suffix.lower() == NUMPY:
        with write_whole(path) as file:
            np.save(file, described.vectors, allow_pickle=False)
        write_json(names_of(path), dict(names=described.names, made_with=described.made_with))
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
    table = table.replace_schema_metadata({MADE_WITH: json.dumps(described.made_with)})
    with write_whole(path) as file:
        parquet.write_table(table, file)


def read_descriptors(path: Path) -> Described:
    """Read a file written by :func:`write_descriptors`.

    Raises:
        UserError: If the file does not contain descriptors with names.
    """
    require_suffix(path, '--index')
    try:
        if path.suffix.lower() == NUMPY:
            vectors = np.load(path, allow_pickle=False)
            content = json.loads(names_of(path).read_text('utf-8', 'surrogateescape'))
            names = content['names']
            described = Described(names, [None] * len(names), vectors, content['made_with'])
        else:
            described = _read_parquet(path)
        is_valid = described.vectors.ndim == 2 and described.vectors.dtype == np.float32
        is_valid = is_valid and len(described.names) == len(described.vectors) > 0
        is_valid = is_valid and all(isinstance(name, str) for name in described.names)
        is_valid = is_valid and isinstance(described.made_with, dict)
        is_valid = is_valid and bool(np.isfinite(described.vectors).all())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise UserError(
            f'--index {path} cannot be read ({reason(error)}): name a file that --out has written'
        ) from None
    if not is_valid:
        raise UserError(
            f'--index {path} does not hold a descriptor for each name: name a file that --out has '
            'written'
        )
    return described


def _read_parquet(path: Path) -> Described:
    from pyarrow import parquet

    with path.open('rb') as file:
        table = parquet.read_table(file)
    column = table['descriptor'].combine_chunks()
    vectors = column.flatten().to_numpy().reshape(len(table), -1)
    sizes = zip(table['height'].to_pylist(), table['width'].to_pylist(), strict=True)
    made_with = json.loads(table.schema.metadata[MADE_WITH.encode()])
    return Described(table['name'].to_pylist(), list(sizes), vectors, made_with)


def _text(name: str) -> str:
    """Replace the bytes of a file name that are not valid text."""
    return name.encode(errors='surrogateescape').decode(errors='replace')
