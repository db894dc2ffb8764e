"""One large image of the built-in shapes, to try out the prediction of large images."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.progress import track

from xcit_mm.data.drawings.shapes import (
    BACKGROUND_LABEL,
    CLASSES,
    RGB,
    Shape,
    annotation_of,
    draw_image,
    label_map,
    new_folder,
    spread,
)

SIZE = 160  # pixels of the side of each drawing, as in the dataset for training
IMAGE, INSTANCES, LABELS = 'mosaic.tif', 'instances.json', 'labels.tif'
OBJECTS = 'objects.geojson'


def make_mosaic(root: str | Path, columns: int, seed: int = 0, bands: int = RGB) -> None:
    """Draw an image of ``columns`` x ``columns`` drawings of shapes into a new folder.

    The folder contains a tiled TIFF image, its objects in the COCO format and as GeoJSON in pixels,
    and a TIFF image of the labels (0 is the background, and 1 to 3 are circles, squares and
    triangles). The image contains no image of the dataset.
    """

    def draw(number: int) -> tuple[np.ndarray, list[Shape]]:
        # The seeds of the dataset are pairs (seed, number of the image).
        return draw_image(np.random.default_rng((seed, number, 1)), SIZE)

    with new_folder(root) as draft:
        numbers = track(range(columns**2), description='Drawing the mosaic')
        placed = write_mosaic(draft / IMAGE, draft / LABELS, map(draw, numbers), columns, bands)
        annotations = [
            annotation_of(shape, number, 1, corner)
            for number, (shape, corner) in enumerate(placed, 1)
        ]
        images = [dict(id=1, file_name=IMAGE, width=columns * SIZE, height=columns * SIZE)]
        write_instances(draft / INSTANCES, images, annotations, CLASSES)
        features = [_feature(annotation) for annotation in annotations]
        content = dict(type='FeatureCollection', features=features)
        (draft / OBJECTS).write_text(json.dumps(content), encoding='utf-8')


def _feature(annotation: dict) -> dict:
    """Return an object in the COCO format, with one polygon, as a feature of GeoJSON."""
    points = annotation['segmentation'][0]
    ring = [*zip(points[::2], points[1::2], strict=True), tuple(points[:2])]
    return dict(
        type='Feature',
        properties={'class': CLASSES[annotation['category_id'] - 1]},
        geometry=dict(type='Polygon', coordinates=[ring]),
    )


def write_mosaic(
    image_path: Path,
    label_path: Path,
    drawings: Iterator[tuple[np.ndarray, list[Shape]]],
    columns: int,
    bands: int = RGB,
) -> list[tuple[Shape, tuple[int, int]]]:
    """Write drawings, row by row, as tiles of one TIFF image, and their labels as another one.

    Returns:
        The shapes, each with the corner (x, y) of its drawing.
    """
    import rasterio
    from rasterio.windows import Window

    options = dict(driver='GTiff', height=columns * SIZE, width=columns * SIZE, dtype='uint8')
    options |= dict(tiled=True, blockxsize=SIZE, blockysize=SIZE)
    options |= dict(compress='deflate', bigtiff='if_safer')
    photometric = 'RGB' if bands == RGB else 'MINISBLACK'  # or four are red, green, blue and alpha
    of_image = dict(options, count=bands, photometric=photometric)
    placed = []
    with (
        rasterio.open(image_path, 'w', **of_image) as image_file,
        rasterio.open(label_path, 'w', count=1, **options) as label_file,
    ):
        for number, (image, shapes) in enumerate(drawings):
            y, x = SIZE * (number // columns), SIZE * (number % columns)
            window = Window(x, y, SIZE, SIZE)
            image_file.write(np.moveaxis(spread(image, bands), -1, 0), window=window)
            label_file.write(label_map(shapes, SIZE) - BACKGROUND_LABEL, 1, window=window)
            placed += [(shape, (x, y)) for shape in shapes]
    return placed


def write_instances(
    path: Path, images: list[dict], annotations: list[dict], classes: tuple[str, ...]
) -> None:
    """Write objects in the COCO format; the ids of the categories start with 1."""
    categories = [dict(id=i, name=name) for i, name in enumerate(classes, 1)]
    content = dict(images=images, annotations=annotations, categories=categories)
    path.write_text(json.dumps(content), encoding='utf-8')
