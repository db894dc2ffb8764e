"""Files of labels and objects, with the georeference of their image if it has one."""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..environment import require
from ..errors import UserError, reason
from ..files import write_whole
from ..predictions import Detections
from .geometry import tiles, whole
from .rasters import CACHE

BLOCK = 512  # pixels of the side of a block of a label image
WRITTEN = BLOCK, 4096  # pixels that are written at a time


def write_tiff(
    path: Path,
    values: np.ndarray,
    georeference: Mapping[str, Any],
    palette: Sequence[tuple[int, int, int]] = (),
) -> None:
    """Write an array (H, W) as a tiled GeoTIFF, window by window.

    The file is either complete or absent. Values of 8 bits get the colors of ``palette``. The
    no-data value of floats is NaN.
    """
    require('rasterio')
    import rasterio
    from rasterio.errors import RasterioIOError
    from rasterio.windows import Window as RasterWindow

    options = dict(tiled=True, blockxsize=BLOCK, blockysize=BLOCK, compress='deflate')
    options |= dict(bigtiff='if_safer', height=values.shape[0], width=values.shape[1], count=1)
    options |= dict(dtype=values.dtype.name, **georeference)
    is_float = values.dtype.kind == 'f'
    if is_float:
        options |= dict(nodata=np.nan, predictor=3)  # which halves the files of floats
    windows = [(w, RasterWindow.from_slices(*w)) for w in tiles(whole(values.shape), WRITTEN)]
    try:
        with (
            write_whole(path) as file,
            warnings.catch_warnings(),
            rasterio.Env(GDAL_CACHEMAX=CACHE),
        ):
            warnings.simplefilter('ignore')  # about images without a georeference
            with rasterio.open(file.name, 'w', 'GTiff', **options) as tiff:
                if len(palette):
                    tiff.write_colormap(1, {i: tuple(color) for i, color in enumerate(palette)})
                for window, in_file in windows:
                    tiff.write(values[tuple(window)], 1, window=in_file)
            with rasterio.open(file.name) as tiff:  # GDAL hides the errors of its last write
                for window, in_file in windows:
                    read, written = tiff.read(1, window=in_file), values[tuple(window)]
                    if not np.array_equal(read, written, equal_nan=is_float):
                        raise RasterioIOError('the file differs from what was written')
    except RasterioIOError as error:
        raise UserError(
            f'{path} cannot be written ({reason(error)}): make room on its disk'
        ) from None


def write_geojson(path: Path, objects: Detections, georeference: Mapping[str, Any]) -> None:
    """Write objects as GeoJSON, in the map coordinates of the image if it has any.

    Objects with masks are outlined by their pixels, and other objects by their boxes. As in the
    files of GDAL, ``crs`` names the reference system. Without one, the coordinates are pixels.
    """
    content: dict[str, Any] = dict(type='FeatureCollection')
    crs = georeference.get('crs')
    if crs is not None:
        code = crs.to_epsg()
        name = crs.to_wkt() if code is None else f'urn:ogc:def:crs:EPSG::{code}'
        content['crs'] = dict(type='name', properties=dict(name=name))
    with write_whole(path, 'w') as file:
        # One by one: the outlines of many objects take gigabytes as lists of numbers.
        file.write(f'{json.dumps(content)[:-1]}, "features": [')
        for i, (label, score) in enumerate(zip(objects.labels, objects.scores, strict=True)):
            feature = dict(
                type='Feature',
                properties={'class': objects.classes[label], 'score': round(float(score), 4)},
                geometry=_geometry(objects, i, georeference.get('transform')),
            )
            file.write((',\n' if i else '') + json.dumps(feature))
        file.write(']}')


def _geometry(objects: Detections, i: int, transform: Any) -> dict[str, Any]:
    require('rasterio')
    from rasterio import Affine, features
    from rasterio.windows import Window as RasterWindow
    from rasterio.windows import transform as transform_of_window

    transform = transform or Affine.identity()
    if objects.masks is None:
        left, top, right, bottom = map(float, objects.boxes[i])
        corners = (left, top), (right, top), (right, bottom), (left, bottom), (left, top)
        a, b, c, d, e, f, *_ = transform
        ring = [(a * x + b * y + c, d * x + e * y + f) for x, y in corners]
        return dict(type='Polygon', coordinates=[ring])
    window, mask = objects.masks[i]
    in_window = transform_of_window(RasterWindow.from_slices(*window), transform)
    outlines = features.shapes(mask.astype(np.uint8), mask, transform=in_window)
    return dict(type='MultiPolygon', coordinates=[shape['coordinates'] for shape, _ in outlines])
