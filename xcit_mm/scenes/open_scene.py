"""A scene as its prediction needs it: its resolution, and the pixels that are predicted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..environment import require
from ..errors import ArgumentError
from ..processes import digest_of_file
from .crops import CroppedImage, window_of
from .geometry import Window, whole
from .image_source import ImageSource
from .image_views import RGBImage
from .masks import MaskedImage, mask_of, open_mask
from .open_image import open_image
from .overview import overview
from .polygon_masks import polygons_of
from .tissue import PICTURE_SIDE, tissue_of

Image = str | Path | np.ndarray | Sequence[str | Path]


@dataclass(frozen=True, kw_only=True)
class SceneOptions:
    """The part of an image that is predicted, and at which resolution.

    Attributes:
        nodata: The value of pixels without data, instead of the one in the file.
        level: The number of the overview that is read; 0 is the full image.
        resolution: Meters per pixel, or micrometers per pixel of slides and microscopes, to which
            the image is resampled.
        region: The window (left, top, right, bottom) in pixels of the full image, or the path of
            a GeoJSON file or GeoPackage with polygons.
        mask: The path of an image whose pixels other than 0 are predicted.
        tissue: Whether to predict only the tissue of a slide.

    Raises:
        ArgumentError: If a value is invalid.
    """

    nodata: float | None = None
    level: int | None = None
    resolution: float | None = None
    region: Sequence[int] | str | Path | None = None
    mask: str | Path | None = None
    tissue: bool = False

    def __post_init__(self) -> None:
        if self.level is not None and self.resolution is not None:
            raise ArgumentError('level and resolution exclude each other: name one of them')
        if self.level is not None and self.level < 0:
            raise ArgumentError(f'level={self.level} is negative: 0 is the full image')
        if self.resolution is not None and not self.resolution > 0:
            raise ArgumentError(f'resolution={self.resolution} is not a positive number')
        if not (self.region is None or isinstance(self.region, (str, Path))):
            are_numbers = all(isinstance(n, (int, np.integer)) for n in self.region)
            if not are_numbers or len(self.region) != 4:
                raise ArgumentError(
                    f'region={self.region!r} is neither a file nor four numbers of pixels: left, '
                    'top, right, bottom'
                )


@dataclass(frozen=True)
class Scene:
    """An image, and the place of its pixels in the full image.

    Attributes:
        source: The image at the resolution and in the window of the prediction, whose pixels
            outside the region, the mask and the tissue count as pixels without data.
        full_size: (H, W) of the full image.
        corner: The top left corner of the source in the full image, in its pixels, y and x.
        scale: The pixels of the full image in a pixel of the source, in y and x.
    """

    source: ImageSource
    full_size: tuple[int, int]
    corner: tuple[float, float]
    scale: tuple[float, float]

    @property
    def window(self) -> Window:
        """The window of the full image that the source shows."""
        starts = [round(start) for start in self.corner]
        sides = [round(n * k) for n, k in zip(self.source.shape, self.scale, strict=False)]
        spans = zip(starts, sides, strict=True)
        return Window(*(slice(start, start + side) for start, side in spans)).clipped(
            self.full_size
        )

    @property
    def georeference(self) -> dict[str, Any]:
        """The place of the pixels of the source on the map, or in the full image without a map."""
        if self.source.georeference or self.source.shape[:2] == self.full_size:
            return self.source.georeference
        require('rasterio')
        from rasterio import Affine

        place = Affine.translation(*self.corner[::-1]) * Affine.scale(*self.scale[::-1])
        return dict(transform=place)

    @property
    def full_georeference(self) -> dict[str, Any]:
        """The place of the pixels of the full image on the map."""
        transform = self.source.georeference.get('transform')
        if self.source.shape[:2] == self.full_size:
            return self.source.georeference
        if self.source.georeference.get('crs') is None:
            return {}
        y, x = (-n / k for n, k in zip(self.corner, self.scale, strict=True))
        smaller = transform.scale(1 / self.scale[1], 1 / self.scale[0])
        moved = transform * transform.translation(x, y) * smaller
        return {**self.source.georeference, 'transform': moved}


def open_scene(
    image: Image,
    read: Callable[[str], np.ndarray],
    channels: int | None,
    options: SceneOptions,
) -> Scene:
    """Open an image, or several tiles of one, as a scene; see :func:`.open_image`.

    Raises:
        UserError: If the image, the region or the mask cannot be used.
    """
    reduced = dict(nodata=options.nodata, level=options.level, resolution=options.resolution)
    source = open_image(image, read, channels, **reduced)
    full_size, size = source.full_size, source.shape[:2]
    scale = tuple(n / m for n, m in zip(full_size, size, strict=True))
    source, frame = _in_region(source, options.region, scale)
    if options.mask is not None:
        mask = open_mask(options.mask)
        source = MaskedImage(source, mask_of(mask, source), mask.content())
    if options.tissue:
        small = _picture(image, read, channels, options, source)
        source = MaskedImage(source, tissue_of(source, small), 'tissue')
    if frame != whole(size):
        source = CroppedImage(source, frame)
    corner = tuple(span.start * k for span, k in zip(frame, scale, strict=True))
    return Scene(source, full_size, corner, scale)


def _in_region(
    source: ImageSource, region: Sequence[int] | str | Path | None, scale: Sequence[float]
) -> tuple[ImageSource, Window]:
    """Return an image without data outside the polygons of a region, and the window around it."""
    if region is None:
        return source, whole(source.shape[:2])
    if isinstance(region, (str, Path)):
        polygons = polygons_of(region, source, scale)
        digest = digest_of_file(Path(region).expanduser())
        return MaskedImage(source, polygons, digest), polygons.box
    spans = zip(window_of(region, source.full_size), source.shape, source.full_size, strict=False)
    # All pixels of the image that show a part of the region.
    return source, Window(*(slice(s.start * m // n, -(-s.stop * m // n)) for s, m, n in spans))


def _picture(
    image: Image,
    read: Callable[[str], np.ndarray],
    channels: int | None,
    options: SceneOptions,
    source: ImageSource,
) -> np.ndarray:
    """Return a reduced picture of an image, RGB, from the smallest level that is large enough."""
    large = [n for n, size in enumerate(source.levels) if max(size) >= PICTURE_SIDE]
    if large and large[-1] > source.level:
        source = open_image(image, read, channels, nodata=options.nodata, level=large[-1])
    rgb = RGBImage(source)
    return overview(source.shape[:2], rgb.read, PICTURE_SIDE, rgb.max_rows)
