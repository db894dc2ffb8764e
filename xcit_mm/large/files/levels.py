"""The levels of an image, from its full size to its smallest overview."""

from collections.abc import Sequence

from ...base.errors import ArgumentError, UserError

RESAMPLE = '--resolution reduces it to any size'
ADD_LEVELS = f'{RESAMPLE}, and gdaladdo -r average FILE 2 4 8 16 adds levels to a TIFF file'


def require_level(
    name: str, level: int, levels: Sequence[tuple[int, int]], remedy: str = RESAMPLE
) -> None:
    """Refuse a level that an image with levels of the sizes (H, W) does not have."""
    if level < 0:
        raise ArgumentError(f'--level {level}: not the number of a level, which is 0 or more')
    if level >= len(levels):
        sizes = ', '.join(f'{i} ({width}x{height})' for i, (height, width) in enumerate(levels))
        kind = 'levels are' if len(levels) > 1 else 'only level is'
        raise UserError(f'{name} has no level {level}: its {kind} {sizes}; {remedy}')
