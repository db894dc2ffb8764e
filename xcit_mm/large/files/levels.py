"""The levels of an image, from its full size to its smallest overview."""

from collections.abc import Sequence

from ...base.errors import ArgumentError


def require_level(name: str, level: int, levels: Sequence[tuple[int, int]]) -> None:
    """Refuse a level that an image with levels of the sizes (H, W) does not have."""
    if not 0 <= level < len(levels):
        sizes = ', '.join(f'{i} ({width}x{height})' for i, (height, width) in enumerate(levels))
        raise ArgumentError(
            f'{name} has no level {level}, but {sizes}: --resolution reduces it to any size, and '
            'gdaladdo -r average FILE 2 4 8 16 adds levels to a TIFF file'
        )
