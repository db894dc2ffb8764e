"""A scene as its prediction needs it: its resolution, and the pixels that are predicted."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import ArgumentError, UserError
from ...base.geometry import Window, whole
from ...base.http import is_url
from ...data.tiff.places import incomplete
from ...large.files.image_source import ImageSource, state_of_file
from ...large.files.image_views import CroppedImage, RangedImage, RGBImage, window_of
from ...large.files.open_image import open_image
from ...large.files.overview import overview
from ...large.labels.masks import MaskedImage, mask_of, open_mask, polygons_of
from ...large.labels.tissue import PICTURE_SIDE, tissue_of

# The ends of names of files next to NAME.tif, after NAME.tif and after NAME.
SIDECARS, RPC_FILES = ('.msk', '.ovr'), ('.RPB', '_RPC.TXT', '_rpc.txt')
MAX_PIXELS = 2**40  # of a scene; a country at 10 m per pixel has 2^33
WINDOW = re.compile(r' *\d+(, *\d+){3} *')
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
        value_range: The values of the image that become 0 and 255, for a model of RGB images.

    Raises:
        ArgumentError: If a value is invalid.
    """

    nodata: float | None = None
    level: int | None = None
    resolution: float | None = None
    region: Sequence[int] | str | Path | None = None
    mask: str | Path | None = None
    tissue: bool = False
    value_range: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.level is not None and self.resolution is not None:
            raise ArgumentError(
                '--level and --resolution cannot be combined: leave one of them out'
            )
        if self.resolution is not None and not 0 < self.resolution < math.inf:
            raise ArgumentError(f'--resolution {self.resolution} is not a positive number')
        if isinstance(self.region, str) and WINDOW.fullmatch(self.region):  # of the command line
            object.__setattr__(self, 'region', tuple(map(int, self.region.split(','))))
        if self.value_range is not None:
            low, high = self.value_range
            if not -math.inf < low < high < math.inf:
                raise ArgumentError(
                    f'--range {low:g},{high:g}: name the values that become 0 and 255, the lower '
                    'one first'
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
        notes: Sentences on what was found, and on what was not read.
    """

    source: ImageSource
    full_size: tuple[int, int]
    corner: tuple[float, float]
    scale: tuple[float, float]
    notes: tuple[str, ...] = ()

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
        from rasterio import Affine

        place = Affine.translation(*self.corner[::-1]) * Affine.scale(*self.scale[::-1])
        return dict(transform=place)

    @property
    def full_georeference(self) -> dict[str, Any]:
        """The place of the pixels of the full image on the map."""
        transform = self.source.georeference.get('transform')
        if transform is None or self.source.shape[:2] == self.full_size:
            return self.source.georeference
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
    notes = [*unread_neighbors(image), *incomplete(source.name, source.place)]
    if options.value_range is not None:
        if channels is None:
            raise ArgumentError('--range is for models of RGB images: the others read all values')
        source = RangedImage(source, options.value_range)
    source, frame = _in_region(source, options.region)
    # A picture of the whole image shows where the tissue is.
    _require_feasible(source.name, size if options.tissue else frame.size)
    if options.mask is not None:
        mask = open_mask(options.mask)
        source = MaskedImage(source, mask_of(mask, source), mask.identity())
    if options.tissue:
        small = _picture(image, read, channels, options, source)
        tissue = tissue_of(source, small)
        notes.append(f'{source.name}: tissue is {tissue.share:.1%} of the image')
        source = MaskedImage(source, tissue, 'tissue')
    if frame != whole(size):
        source = CroppedImage(source, frame)
    corner = tuple(span.start * k for span, k in zip(frame, scale, strict=True))
    return Scene(source, full_size, corner, scale, tuple(notes))


def _require_feasible(name: str, size: tuple[int, int]) -> None:
    """Refuse a huge size, which a tiny file may claim, before each part of it takes memory."""
    if math.prod(size) > MAX_PIXELS:
        raise UserError(
            f'{name} has {size[1]}x{size[0]} pixels where it is read, but at most {MAX_PIXELS} can '
            'be predicted at a time: name a part with --region, or a reduced --level'
        )


def _in_region(
    source: ImageSource, region: Sequence[int] | str | Path | None
) -> tuple[ImageSource, Window]:
    """Return an image without data outside the polygons of a region, and the window around it."""
    if region is None:
        return source, whole(source.shape[:2])
    if isinstance(region, (str, Path)):
        polygons = polygons_of(region, source)
        state = state_of_file(Path(region).expanduser())
        return MaskedImage(source, polygons, state), polygons.box
    spans = zip(window_of(region, source.full_size), source.shape, source.full_size, strict=False)
    # All pixels of the image that show a part of the region.
    return source, Window(*(slice(s.start * m // n, -(-s.stop * m // n)) for s, m, n in spans))


def unread_neighbors(image: Image) -> list[str]:
    """Return a sentence on each file next to an image that other programs read as a part of it."""
    if not isinstance(image, (str, Path)) or is_url(str(image)):
        return []
    path = Path(image).expanduser()
    neighbors = [path.with_name(f'{path.name}{end}') for end in SIDECARS]
    neighbors += [path.with_name(f'{path.stem}{end}') for end in RPC_FILES]
    return [
        f'{neighbor} is not read: gdal_translate -co COPY_SRC_OVERVIEWS=YES puts masks, levels and '
        f'RPCs into {path.name} itself'
        for neighbor in neighbors
        if neighbor.is_file()
    ]


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
        if options.value_range is not None:
            source = RangedImage(source, options.value_range)
    rgb = RGBImage(source)
    return overview(source.shape[:2], rgb.read, PICTURE_SIDE, rgb.max_rows)
