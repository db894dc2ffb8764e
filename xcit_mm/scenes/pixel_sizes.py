"""The size of the pixels of images, from their files."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..environment import require

METERS, MICROMETERS = 'm', '\N{MICRO SIGN}m'


# The units of OME and NGFF, in micrometers.
IN_MICROMETERS = dict(nm=1e-3, nanometer=1e-3, micrometer=1, mm=1e3, millimeter=1e3, cm=1e4)
IN_MICROMETERS |= dict(centimeter=1e4, m=1e6, meter=1e6) | {
    MICROMETERS: 1,
    '\N{GREEK SMALL LETTER MU}m': 1,
}


class PixelSize(NamedTuple):
    """The height and the width of a pixel, in a unit: meters of a map, or micrometers."""

    height: float
    width: float
    unit: str

    def reduced(self, size: Sequence[int], reduced: Sequence[int]) -> 'PixelSize':
        """Return the pixel size of an image (H, W) after its reduction to another size."""
        rows, columns = (a / b for a, b in zip(size[:2], reduced[:2], strict=True))
        return PixelSize(self.height * rows, self.width * columns, self.unit)


def pixel_size_on_map(crs: Any, transform: Any) -> PixelSize | None:
    """Return the pixel size in meters, or None for coordinates in degrees or an unknown unit."""
    if crs is None or not crs.is_projected:
        return None
    _, meters = crs.linear_units_factor
    width = math.hypot(transform.a, transform.d) * meters
    return PixelSize(math.hypot(transform.b, transform.e) * meters, width, METERS)


def pixel_size_of(height: Any, width: Any) -> PixelSize | None:
    """Return a size in micrometers from numbers or texts, or None if they are not positive."""
    try:
        size = PixelSize(float(height), float(width), MICROMETERS)
    except (TypeError, ValueError):
        return None
    return size if min(size[:2]) > 0 and max(size[:2]) < math.inf else None


def in_micrometers(length: Any, unit: str | None) -> float | None:
    """Return a length, a number or a text, in micrometers; None if it or its unit is not known."""
    factor = IN_MICROMETERS.get(unit)
    try:
        return None if factor is None else float(length) * factor
    except (TypeError, ValueError):
        return None


def to_full_size(size: Sequence[int], full_size: Sequence[int]) -> dict[str, Any]:
    """Return the transform from the pixels of a reduced image to the pixels of the full image."""
    require('rasterio')
    from rasterio import Affine

    return dict(transform=Affine.scale(full_size[1] / size[1], full_size[0] / size[0]))
