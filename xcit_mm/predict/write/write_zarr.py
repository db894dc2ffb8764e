"""Zarr arrays of values of classes, for types that GDAL has no files for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...base.environment import require
from ...base.errors import UserError, reason
from ...base.files import write_beside
from ...base.geometry import tiles, whole

CHUNK = 512  # pixels of the side of a chunk


def write_zarr(
    path: Path, values: np.ndarray, names: Sequence[str], georeference: Mapping[str, Any]
) -> None:
    """Write an array (K, H, W) with the values of K classes as a Zarr array of version 3.

    A chunk is a part of one class. The chunks of all classes at one place are in one file, so that
    large images do not take hundreds of thousands of files. The attributes are ``classes`` and, if
    the image has them, ``crs`` (WKT) and ``transform`` (six numbers in the order of rasterio). The
    folder is either complete or absent.

    Raises:
        UserError: If the folder cannot be written.
    """
    require('zarr')
    import zarr
    from zarr.core.config import config

    count, *size = values.shape
    attributes: dict[str, Any] = dict(classes=list(names))
    if (crs := georeference.get('crs')) is not None:
        attributes['crs'] = crs.to_wkt()
    if (transform := georeference.get('transform')) is not None:
        attributes['transform'] = list(transform)[:6]
    try:
        # Otherwise, Zarr encodes several files at a time, and holds all of them in memory.
        with write_beside(path) as unfinished, config.set({'async.concurrency': 1}):
            array = zarr.create_array(
                unfinished,
                shape=values.shape,
                chunks=(1, CHUNK, CHUNK),
                shards=(count, CHUNK, CHUNK),
                dtype=values.dtype,
                dimension_names=('class', 'y', 'x'),
                attributes=attributes,
            )
            for window in tiles(whole(size), (CHUNK, CHUNK)):
                array[(slice(None), *window)] = values[(slice(None), *window)]
    except OSError as error:
        raise UserError(
            f'{path} cannot be written ({reason(error)}): make room on its disk'
        ) from None
