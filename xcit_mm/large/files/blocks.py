"""The size of the blocks of an image file, which are decoded as a whole."""

from collections.abc import Sequence
from pathlib import Path

from ...base.errors import UserError

MAX_BLOCK = 2**28  # bytes, with all bands if they are interleaved


def require_small_blocks(path: Path | str, size: Sequence[int], bytes_of_pixel: int) -> None:
    """Refuse a file with blocks (h, w) that take too much memory; a small file can claim any."""
    rows, columns = size
    needed = rows * columns * bytes_of_pixel
    if needed > MAX_BLOCK:
        raise UserError(
            f'{path} consists of blocks of {columns}x{rows} pixels that take {needed} bytes each, '
            f'but at most {MAX_BLOCK} are possible: write it with smaller blocks, for example with '
            'gdal_translate -co TILED=YES -co INTERLEAVE=BAND'
        )
