"""Pixels without data, by their values."""

import math
from collections.abc import Sequence

import numpy as np

NoData = float | Sequence[float | None] | None  # of all bands, or of each band


def has_data(pixels: np.ndarray, nodata: NoData) -> np.ndarray:
    """Return which pixels of an image (h, w, bands) have data, (h, w) bool.

    A pixel has no data if each band has its no-data value, or if any band is NaN.
    """
    *size, count = pixels.shape
    is_missing = np.full(size, nodata is not None)
    for band, value in enumerate(of_bands(nodata, count)):
        if nodata is not None:
            is_missing &= _equals(pixels[..., band], value)
    if pixels.dtype.kind == 'f':
        for band in range(count):  # one by one, for less memory
            is_missing |= np.isnan(pixels[..., band])
    return ~is_missing


def of_bands(nodata: NoData, count: int) -> Sequence[float | None]:
    """Return the no-data value of each band."""
    return nodata[:count] if isinstance(nodata, Sequence) else [nodata] * count


def representable(value: float, dtype: np.dtype) -> bool:
    """Return whether an image of a type may have a value."""
    if dtype.kind == 'f':
        return math.isnan(value) or math.isinf(value) or abs(value) <= float(np.finfo(dtype).max)
    if dtype.kind not in 'iu' or not float(value).is_integer():
        return False
    return np.iinfo(dtype).min <= value <= np.iinfo(dtype).max


def _equals(values: np.ndarray, nodata: float | None) -> np.ndarray:
    if nodata is None or not representable(nodata, values.dtype):
        return np.zeros(values.shape, bool)
    return np.isnan(values) if math.isnan(nodata) else values == values.dtype.type(nodata)
