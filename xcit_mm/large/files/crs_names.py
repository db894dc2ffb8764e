"""Names of reference systems."""

from typing import Any


def epsg_code(crs: Any) -> int | None:
    """Return the EPSG code of a reference system, or None if it has none.

    ``to_epsg`` of rasterio also returns the code of a system that is only similar, for example with
    another datum shift, which moves coordinates by 100 to 200 meters.
    """
    code = crs.to_epsg()
    return code if code is not None and type(crs).from_epsg(code) == crs else None


def crs_name(crs: Any) -> str:
    """Return the name of a reference system in messages; it differs for different systems."""
    code = epsg_code(crs)
    return f'EPSG:{code}' if code is not None else crs.to_proj4() or crs.to_wkt()
