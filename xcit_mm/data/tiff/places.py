"""Where an image lies on a map, according to its file or a small file next to it."""

import math
import warnings
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, ParseError

import numpy as np

from ...base.errors import UserError, one_line
from ...base.files import parse_xml, read_regular
from .file_headers import require_modest_header
from .reference_systems import crs_of, require_plain

# The drivers of GDAL by suffix. Without a driver, GDAL looks at the content, so a text file that
# is named .tif could make it open any other file or address.
RASTERS = dict.fromkeys(('.tif', '.tiff', '.btf', '.tf8'), 'GTiff') | {'.jp2': 'JP2OpenJPEG'}
ALONE = dict(GDAL_DISABLE_READDIR_ON_OPEN='EMPTY_DIR')  # GDAL does not open files next to the image
MAX_SIDECAR = 2**26  # bytes
SAME_PIXEL = 0.5  # pixels; grids whose pixels are less apart count as the same grid
SURVEY = 5  # two grids are compared at so many places along each axis


class Place(NamedTuple):
    """The place of an image on a map; its fields are None or empty if it has none.

    Attributes:
        crs: The reference system, or None for coordinates of an unknown system.
        transform: The affine transform from pixels, column and row, to the map.
        points: For a file that is placed by ground control points or rational polynomials instead
            of a transform, a description of them and their values.
    """

    crs: Any = None
    transform: Any = None
    points: tuple = ()

    @property
    def georeference(self) -> dict[str, Any]:
        """``crs`` and ``transform``, or {}."""
        return {} if self.transform is None else dict(crs=self.crs, transform=self.transform)

    def in_words(self, size: Sequence[int]) -> str:
        """Describe the place of an image (H, W)."""
        if self.transform is None:
            return f'by {self.points[0]}' if self.points else 'nowhere'
        corners = [self.transform * corner for corner in product((0, size[1]), (0, size[0]))]
        spans = (
            f'{min(values):.10g} to {max(values):.10g}' for values in zip(*corners, strict=True)
        )
        system = 'an unnamed system' if self.crs is None else _name(self.crs)
        return f'at x {" and y ".join(spans)} in {system}'


NOWHERE = Place()


def place_of(file: Any, path: Path | None = None) -> Place:
    """Return the place of a file that rasterio has opened, or of the files next to its path.

    As in GDAL, a file ``.aux.xml`` comes before the file itself, and a world file after it.

    Raises:
        UserError: If a file next to it cannot be read, or if a reference system needs a file.
    """
    for crs in filter(None, (file.crs, file.gcps[1])):
        try:
            require_plain(crs.to_wkt())
        except ValueError as error:
            raise UserError(
                f'{path or file.name}: {error}: replace it with gdal_edit.py -a_srs'
            ) from None
    place = Place(points=_control_points(*file.gcps) or _polynomials(file.rpcs))
    if not file.transform.is_identity:
        place = Place(file.crs, file.transform)
    return place if path is None else _with_sidecars(place, path)


def place_of_file(path: Path) -> Place:
    """Return the place of an image file on this machine, which may be missing or damaged.

    Files whose readers have no windows, such as JPEG and PNG, have the place that files next to
    them name.

    Raises:
        UserError: If a file next to it cannot be read.
    """
    if path.suffix.lower() not in RASTERS:
        return _with_sidecars(NOWHERE, path)
    from rasterio.errors import RasterioError

    try:
        status = path.stat()
        place = _stored_place(path.absolute(), status.st_mtime_ns, status.st_size)
    except (RasterioError, OSError):  # reported when the pixels are read
        return NOWHERE
    return _with_sidecars(place, path)


@lru_cache(maxsize=2**14)  # a training asks for each of its images again and again
def _stored_place(path: Path, changed: int, size: int) -> Place:
    """Return the place that a file itself names; the time and size of the file identify it."""
    import rasterio

    require_modest_header(path)
    with rasterio.Env(**ALONE), warnings.catch_warnings():
        warnings.simplefilter('ignore')  # about images without a georeference
        with rasterio.open(path.resolve(), driver=RASTERS[path.suffix.lower()]) as file:
            return place_of(file)


def shown_orientation(orientation: int, path: Path | None) -> int:
    """Return the EXIF orientation in which an image file on this machine, if it is one, is shown.

    A place on the map is the place of the stored pixels, so an image with a place is not turned.
    """
    if orientation == 1 or path is None or place_of_file(path) == NOWHERE:
        return orientation
    return 1


def are_laid_by_pixels(
    raster: Place, size: Sequence[int], image: Place, image_size: Sequence[int]
) -> bool:
    """Return whether each pixel of a raster belongs to the pixel of an image at the same indices.

    This is the case if one of them has no place, or if both have the same place.
    """
    places = raster.transform, image.transform
    if None in places:
        has_none = NOWHERE in (raster, image)
        return has_none or (raster.points == image.points != () and places == (None, None))
    if tuple(size) != tuple(image_size):
        return False
    pixels = np.meshgrid(*(np.linspace(0.5, n - 0.5, SURVEY) for n in size[::-1]))
    same = pixels_at(raster, size, *applied(image.transform, *pixels), image.crs)
    return same is not None and bool(np.abs(same - pixels).max() < SAME_PIXEL)


def pixels_at(
    place: Place, size: Sequence[int], x: np.ndarray, y: np.ndarray, crs: Any
) -> np.ndarray | None:
    """Return the pixels, columns and rows (2, ...), of an image (H, W) at coordinates of a system.

    Longitudes may differ by full turns. Returns None if some of the points have no coordinates in
    the system of the image.
    """
    if (coordinates := converted(x, y, crs, place.crs)) is None:
        return None
    x, y = coordinates
    if place.crs is not None and place.crs.is_geographic:
        turn = 2 * math.pi / place.crs.units_factor[1]
        center, _ = applied(place.transform, size[1] / 2, size[0] / 2)
        x = x + turn * np.round((center - x) / turn)
    return np.array(applied(~place.transform, x, y))


def applied(transform: Any, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Apply an affine transform to points."""
    a, b, c, d, e, f, *_ = transform
    return a * x + b * y + c, d * x + e * y + f


def converted(x: np.ndarray, y: np.ndarray, crs: Any, other: Any) -> Sequence[np.ndarray] | None:
    """Convert coordinates to another system. If one of the systems is unknown (None), keep them.

    Returns None if some of the points have no coordinates in the other system.
    """
    if crs is None or other is None or crs == other:
        return x, y
    from rasterio._err import CPLE_BaseError
    from rasterio.errors import RasterioError
    from rasterio.warp import transform

    try:
        return np.reshape(transform(crs, other, x.ravel(), y.ravel()), (2, *x.shape))
    except (CPLE_BaseError, RasterioError):
        return None


def elsewhere(
    name: str,
    place: Place,
    size: Sequence[int],
    image: str,
    of_image: Place,
    of_size: Sequence[int],
) -> str:
    """Return the sentence that refuses a raster that lies elsewhere than its image."""
    return (
        f'{name} is placed {place.in_words(size)}, but {image} {of_image.in_words(of_size)}: write '
        'one on the pixels of the other with gdalwarp, or correct a wrong place with gdal_edit.py'
    )


def incomplete(name: str, place: Place) -> list[str]:
    """Return a sentence on an image whose place lacks a transform or a reference system."""
    if place.transform is None and place.points:
        return [
            f'{name} is placed by {place.points[0]} instead of a transform, so results are in '
            'pixels: gdalwarp writes a file whose results are on the map'
        ]
    if place.transform is not None and place.crs is None:
        return [
            f'{name} has a place on a map without a reference system, so results have none: '
            'gdal_translate -a_srs writes a file with both'
        ]
    return []


def place_in(root: Element) -> Place:
    """Return the place that a virtual raster or a file ``.aux.xml`` names.

    Raises:
        ValueError: If it is damaged.
    """
    from rasterio import Affine

    text = root.findtext('SRS')
    crs = crs_of(text) if text else None
    if (numbers := root.findtext('GeoTransform')) is not None:
        return Place(crs, _affine(Affine.from_gdal(*_numbers(numbers.split(',')))))
    points = root.find('GCPList')
    if points is None or not len(points):
        return Place(crs)
    values = [[point.get(key, '0') for key in ('Line', 'Pixel', 'X', 'Y', 'Z')] for point in points]
    values = [tuple(map(float, of_point)) for of_point in values]
    text = points.get('Projection')
    return Place(points=_described(values, crs_of(text) if text else None))


def _with_sidecars(place: Place, path: Path) -> Place:
    sidecar = path.with_name(f'{path.name}.aux.xml')
    try:
        if sidecar.is_file():
            named = place_in(parse_xml(read_regular(sidecar, MAX_SIDECAR)))
            place = Place(*(b if b else a for a, b in zip(place, named, strict=True)))
        for sidecar in _world_files(path) if place.transform is None else ():
            if sidecar.is_file():
                return Place(place.crs, _of_world_file(read_regular(sidecar, MAX_SIDECAR)))
    except (OSError, ParseError, ValueError, UnicodeError) as error:
        raise UserError(
            f'{sidecar}, which places {path.name} on the map, cannot be read '
            f'({one_line(str(error))}): repair or remove it'
        ) from None
    # Without a transform, the system does not place the image.
    return place if place.transform is not None else Place(points=place.points)


def _world_files(path: Path) -> list[Path]:
    """Return the names of the world file of an image, as in GDAL: .tfw, .tifw and .wld."""
    suffix = path.suffix
    if len(suffix) < 2:
        return []
    ends = f'.{suffix[1]}{suffix[-1]}w', f'{suffix}w', '.wld'
    return [path.with_suffix(change(end)) for end in ends for change in (str.lower, str.upper)]


def _of_world_file(data: bytes) -> Any:
    from rasterio import Affine

    # Decimal points and commas occur. The offsets are those of the center of the first pixel.
    a, d, b, e, c, f = _numbers(data.decode('ascii').replace(',', '.').split())
    return _affine(Affine(a, b, c, d, e, f) * Affine.translation(-0.5, -0.5))


def _numbers(texts: Sequence[str]) -> list[float]:
    numbers = [float(text) for text in texts]
    if len(numbers) != 6 or not np.isfinite(numbers).all():
        raise ValueError('its transform does not have six numbers')
    return numbers


def _affine(transform: Any) -> Any:
    if transform.is_degenerate:
        raise ValueError('its transform has no area')
    return transform


def _control_points(points: Sequence[Any], crs: Any) -> tuple:
    return _described([(p.row, p.col, p.x, p.y, p.z or 0.0) for p in points], crs) if points else ()


def _described(points: list[tuple[float, ...]], crs: Any) -> tuple:
    system = '' if crs is None else f' in {_name(crs)}'
    return f'{len(points)} ground control points{system}', tuple(points)


def _polynomials(rpcs: Any) -> tuple:
    return ('rational polynomials (RPCs)', str(rpcs.to_dict())) if rpcs else ()


def _name(crs: Any) -> str:
    """Return a short name of a reference system."""
    text = crs.to_string()
    return text.split('"')[1] if '"' in text else text
