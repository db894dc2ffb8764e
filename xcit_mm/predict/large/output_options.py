"""How predictions of large images are written."""

import math
from dataclasses import dataclass

from ...base.environment import require
from ...base.errors import ArgumentError

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

    Raises:
        ArgumentError: If a value is invalid, or needs another one.
    """

    vectors: str = GEOJSON
    polygons: bool = False
    smallest_area: float | None = None
    simplify: float | None = None
    cog: bool = False

    def __post_init__(self) -> None:
        if self.vectors not in (GEOJSON, GEOPACKAGE):
            raise ArgumentError(f'vectors {self.vectors!r}: choose {GEOJSON} or {GEOPACKAGE}')
        for name in ('smallest_area', 'simplify'):
            value = getattr(self, name)
            if value is None:
                continue
            option = f'--{name.replace("_", "-")}'
            if not (math.isfinite(value) and value > 0):
                raise ArgumentError(f'{option} {value}: not a positive number')
            if not self.polygons:
                raise ArgumentError(f'{option} is for polygons: add --polygons, or leave it out')

    def require_effect(self, task: str) -> None:
        """Refuse options without an effect on the predictions of a model, and missing packages.

        Raises:
            ArgumentError: If the task, such as 'detection' or 'segmentation', has no such output.
            DependencyError: If a package is missing.
        """
        if self.polygons and task != 'segmentation':
            raise ArgumentError('--polygons is for segmentors: leave it out')
        if self.vectors == GEOPACKAGE:
            require('pyogrio')


DEFAULT_OUTPUT = OutputOptions()
