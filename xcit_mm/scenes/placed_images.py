"""Images with a place on a map."""

from importlib.util import find_spec
from pathlib import Path

from ..weights.cache import is_url
from .rasters import RASTERS, Raster


def has_place(source: str) -> bool:
    """Return whether the header of an image file names its place on a map.

    False if rasterio is missing, or cannot open the file.
    """
    path = Path(source)
    if is_url(source) or path.suffix.lower() not in RASTERS or find_spec('rasterio') is None:
        return False
    try:
        return bool(Raster(path).georeference)
    except Exception:  # whoever predicts the image reports it
        return False
