"""How predictions of large images are written."""

from dataclasses import dataclass

from ...base.environment import require

GEOJSON, GEOPACKAGE = 'geojson', 'gpkg'


@dataclass(frozen=True)
class OutputOptions:
    """How the prediction of an image that does not fit into memory is written.

    Attributes:
        vectors: The format of objects and polygons, ``'geojson'`` or ``'gpkg'`` (GeoPackage).
        polygons: Whether to write the polygons of a segmentor's classes as well.
        smallest_area: Regions with a smaller area get the class of their largest neighbor before
            the polygons are made; in square meters on the ground if the image has a reference
            system, otherwise in the unit of the coordinates, such as pixels of the full image.
        simplify: The tolerance in pixels with which polygons are simplified along their shared
            borders, so that neighbors still touch.
        cog: Whether to write labels, their scores and heights as cloud-optimized GeoTIFF files.
    """

    vectors: str = GEOJSON
    polygons: bool = False
    smallest_area: float | None = None
    simplify: float | None = None
    cog: bool = False

    def require_packages(self) -> None:
        """Refuse to begin without a package that the files need."""
        if self.vectors == GEOPACKAGE:
            require('pyogrio')


DEFAULT_OUTPUT = OutputOptions()
