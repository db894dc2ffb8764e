"""Drawings whose heights a model can learn: cones, domes and boxes on hills, lit from the left.

Slopes show in the shading, the heights of boxes in their shadows, and the altitude of the ground in
its color, as where the vegetation changes with the altitude. A pixel is a meter wide. The light
comes from the left in all drawings: in a mirrored drawing, a cone would look like a pit.
"""

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from rich.progress import track

from xcit_mm.data.drawings.shapes import new_folder

from .mosaic import SIZE

SPLITS = ('training', 'validation')
SCENE, HEIGHTS = 'scene.tif', 'heights.tif'
NODATA = -9999.0  # in the files of labels, which name it
GAP_SHARE = 0.25  # share of the drawings in which a strip has no labels

HILL = 80  # pixels between the summits of the ground
HILL_HEIGHT = 5.0  # standard deviation of the altitude of the ground, in meters
# The colors of the ground by its altitude in meters.
ALTITUDES = (-12, -4, 4, 12)
GROUND = ((30, 90, 60), (90, 140, 60), (170, 150, 90), (235, 230, 220))
OBJECTS = 7  # of a drawing
MIN_RADIUS, MAX_RADIUS = 9.0, 24.0  # of an object, in pixels
MIN_SLOPE, MAX_SLOPE = 0.4, 0.9  # height of a cone or a dome, relative to its radius
MIN_BOX, MAX_BOX = 3.0, 16.0  # height of a box in meters
SUN = 1.0  # tangent of the altitude of the sun: shadows are as long as objects are high
AMBIENT = 0.35  # share of the light that reaches shadows
GRAIN = 5.0  # standard deviation of the noise of each pixel, 0 to 255


@dataclass(frozen=True)
class HeightsSpec:
    """The parameters of a dataset. The same parameters draw the same images."""

    num_train: int = 400
    num_val: int = 40
    seed: int = 0  # not negative


def make_heights(root: str | Path, spec: HeightsSpec | None = None) -> None:
    """Draw the dataset into a new folder.

    ``images`` contains JPEG files of 160 x 160 pixels, and ``heights`` the heights in meters as
    TIFF files of float32, both in the folders ``training`` and ``validation``. A quarter of the
    heights have a strip without data.
    """
    spec = spec or HeightsSpec()
    numbers = range(spec.num_train), range(spec.num_train, spec.num_train + spec.num_val)
    with new_folder(root) as draft:
        for split, of_split in zip(SPLITS, numbers, strict=True):
            images, labels = draft / 'images' / split, draft / 'heights' / split
            for folder in (images, labels):
                folder.mkdir(parents=True)
            for number in track(of_split, description=f'Drawing {split}'):
                # The seeds of the other datasets end with the number of an image, or with 1 or 3.
                rng = np.random.default_rng((spec.seed, number, 4))
                image, heights = draw_terrain(rng, SIZE)
                if rng.random() < GAP_SHARE:
                    start = int(rng.integers(SIZE * 3 // 4))
                    heights[:, start : start + SIZE // 4] = NODATA
                name = f'{number + 1:06d}'
                jpeg = cv2.imencode('.jpg', image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 95])[1]
                (images / f'{name}.jpg').write_bytes(jpeg.tobytes())
                write_bands(labels / f'{name}.tif', heights[None], nodata=NODATA)


def make_height_scene(root: str | Path, columns: int, seed: int = 0) -> None:
    """Draw one image of ``columns`` x ``columns`` times 160 pixels, and its heights, as TIFF files.

    Hills and objects continue across the whole image, and it contains no image of the dataset.
    """
    with new_folder(root) as draft:
        image, heights = draw_terrain(np.random.default_rng((seed, 0, 5)), columns * SIZE)
        write_bands(draft / SCENE, np.moveaxis(image, -1, 0), photometric='RGB')
        write_bands(draft / HEIGHTS, heights[None], nodata=NODATA)


def write_bands(path: Path, bands: np.ndarray, **options: object) -> None:
    """Write bands (bands, H, W) as a tiled TIFF file; ``options`` are rasterio's."""
    import rasterio

    count, height, width = bands.shape
    size = dict(count=count, height=height, width=width, dtype=bands.dtype.name)
    tiled = dict(tiled=True, blockxsize=SIZE, blockysize=SIZE, compress='deflate')
    with rasterio.open(path, 'w', 'GTiff', **size, **tiled, **options) as file:
        file.write(bands)


def draw_terrain(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return an image, (size, size, 3) uint8 RGB, and its heights in meters, float32."""
    heights = _ground(rng, size)
    columns = [np.interp(heights, ALTITUDES, color) for color in zip(*GROUND, strict=True)]
    colors = np.stack(columns, axis=-1)
    for _ in range(round(OBJECTS * (size / SIZE) ** 2)):
        _add_object(rng, heights, colors)
    lit = colors * _light(heights)[..., None] + rng.normal(scale=GRAIN, size=colors.shape)
    return lit.round().clip(0, 255).astype(np.uint8), heights


def _ground(rng: np.random.Generator, size: int) -> np.ndarray:
    summits = rng.normal(scale=HILL_HEIGHT, size=(size // HILL + 3,) * 2).astype(np.float32)
    side = len(summits) * HILL
    ground = cv2.resize(summits, (side, side), interpolation=cv2.INTER_CUBIC)
    y, x = rng.integers(side - size, size=2)
    return ground[y : y + size, x : x + size].copy()


def _add_object(rng: np.random.Generator, heights: np.ndarray, colors: np.ndarray) -> None:
    """Put a cone, a dome or a box on the ground, in place."""
    kind, radius = rng.integers(3), rng.uniform(MIN_RADIUS, MAX_RADIUS)
    center, angle = rng.uniform(0, len(heights), size=2), rng.uniform(0, np.pi / 2)
    slope, of_box = rng.uniform(MIN_SLOPE, MAX_SLOPE), rng.uniform(MIN_BOX, MAX_BOX)
    color = rng.uniform(60, 240, size=3)
    # Only pixels near the object: a large drawing has thousands of them.
    spans = [slice(max(0, int(c - 1.5 * radius)), int(c + 1.5 * radius) + 2) for c in center]
    window = heights[tuple(spans)]
    starts = [span.start for span in spans]
    y, x = np.indices(window.shape) + 0.5 + np.reshape(starts, (2, 1, 1)) - center[:, None, None]
    distance = np.hypot(y, x) / radius
    if kind == 0:
        inside, profile = distance < 1, slope * radius * (1 - distance)
    elif kind == 1:
        inside, profile = distance < 1, slope * radius * np.sqrt(np.maximum(0, 1 - distance**2))
    else:
        turned = (np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x)
        inside, profile = np.maximum(*np.abs(turned)) < 0.8 * radius, of_box
    base = heights[tuple(np.minimum(center.astype(int), len(heights) - 1))]
    surface = (base + profile).astype(np.float32)
    on_top = inside & (surface > window)
    np.copyto(window, surface, where=on_top)
    colors[tuple(spans)][on_top] = color


def _light(heights: np.ndarray) -> np.ndarray:
    """Return the light that reaches each pixel, 0 to 1, from the left; shadows are cast."""
    down, right = np.gradient(heights)
    # The normal of the surface is (-right, -down, 1), and the sun is at (-1, 0, SUN).
    facing = (right + SUN) / np.sqrt((1 + right**2 + down**2) * (1 + SUN**2))
    rays = heights + SUN * np.arange(heights.shape[1])  # the highest ray so far casts the shadow
    is_lit = rays >= np.maximum.accumulate(rays, axis=1)
    return AMBIENT + (1 - AMBIENT) * np.where(is_lit, np.maximum(facing, 0), 0)
