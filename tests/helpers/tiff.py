"""TIFF files of arrays."""

from pathlib import Path

import numpy as np
import rasterio


def write_tiff(path: Path, values: np.ndarray, **options) -> Path:
    """Write an array (H, W) or (H, W, bands) as a TIFF file; options are rasterio's."""
    bands = np.moveaxis(np.atleast_3d(values), 2, 0)
    options |= dict(count=len(bands), height=bands.shape[1], width=bands.shape[2])
    with rasterio.open(path, 'w', 'GTiff', dtype=bands.dtype.name, **options) as file:
        file.write(bands)
    return path
