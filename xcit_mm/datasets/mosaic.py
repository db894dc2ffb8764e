"""One large image of the built-in shapes, to try out the prediction of large images."""

import json
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.progress import track

from ..environment import require
from ..errors import UserError
from ..files import require_writable, writing_to
from .shapes import (
    BACKGROUND_LABEL,
    CLASSES,
    RGB,
    annotation_of,
    draw_image,
    label_map,
    require_drawable,
    spread,
)

SIZE = 160  # pixels of the side of each drawing, as in the dataset for training
IMAGE, INSTANCES, LABELS = 'mosaic.tif', 'instances.json', 'labels.tif'


def make_mosaic(root: str | Path, columns: int, seed: int = 0, bands: int = RGB) -> None:
    """Draw an image of ``columns`` x ``columns`` drawings of shapes into a new folder.

    The folder contains a tiled TIFF image, its objects in the COCO format, and a TIFF image of the
    labels (0 is the background, and 1 to 3 are circles, squares and triangles). The image contains
    no image of the dataset.
    """
    require_drawable(seed, bands)
    root = Path(root).resolve()
    if root.exists():
        raise UserError(f'{root} exists: move it away, or name another folder')
    require('rasterio')
    require_writable(root.parent)
    temporary = TemporaryDirectory(prefix=f'.{root.name}-', dir=root.parent)
    with writing_to(root), temporary as folder, warnings.catch_warnings():
        warnings.simplefilter('ignore')  # about images without a georeference
        draft = Path(folder, 'draft')
        draft.mkdir()
        annotations = _draw(draft, columns, seed, bands)
        categories = [dict(id=i, name=name) for i, name in enumerate(CLASSES, 1)]
        images = [dict(id=1, file_name=IMAGE, width=columns * SIZE, height=columns * SIZE)]
        content = dict(images=images, annotations=annotations, categories=categories)
        (draft / INSTANCES).write_text(json.dumps(content))
        draft.rename(root)


def _draw(draft: Path, columns: int, seed: int, bands: int) -> list[dict]:
    """Write the image and its labels, and return the annotations."""
    import rasterio
    from rasterio.windows import Window

    options = dict(driver='GTiff', height=columns * SIZE, width=columns * SIZE, dtype='uint8')
    options |= dict(tiled=True, blockxsize=SIZE, blockysize=SIZE)
    options |= dict(compress='deflate', bigtiff='if_safer')
    photometric = 'RGB' if bands == RGB else 'MINISBLACK'  # or four are red, green, blue and alpha
    of_image = dict(options, count=bands, photometric=photometric)
    annotations = []
    with (
        rasterio.open(draft / IMAGE, 'w', **of_image) as image_file,
        rasterio.open(draft / LABELS, 'w', count=1, **options) as label_file,
    ):
        for number in track(range(columns**2), description='Drawing the mosaic'):
            # The seeds of the dataset are pairs (seed, number of the image).
            image, shapes = draw_image(np.random.default_rng((seed, number, 1)), SIZE)
            y, x = SIZE * (number // columns), SIZE * (number % columns)
            window = Window(x, y, SIZE, SIZE)
            image_file.write(np.moveaxis(spread(image, bands), -1, 0), window=window)
            label_file.write(label_map(shapes, SIZE) - BACKGROUND_LABEL, 1, window=window)
            for shape in shapes:
                annotations.append(annotation_of(shape, len(annotations) + 1, 1, (x, y)))
    return annotations
