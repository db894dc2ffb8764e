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
    import rasterio
    from rasterio.windows import Window

    require_writable(root.parent)
    side = columns * SIZE
    options = dict(driver='GTiff', height=side, width=side, dtype='uint8', tiled=True)
    options |= dict(blockxsize=SIZE, blockysize=SIZE, compress='deflate', bigtiff='if_safer')
    photometric = 'RGB' if bands == RGB else 'MINISBLACK'  # or four are red, green, blue and alpha
    temporary = TemporaryDirectory(prefix=f'.{root.name}-', dir=root.parent)
    with writing_to(root), temporary as folder, warnings.catch_warnings():
        warnings.simplefilter('ignore')  # about images without a georeference
        draft = Path(folder, 'draft')
        draft.mkdir()
        annotations = []
        with (
            rasterio.open(
                draft / IMAGE, 'w', count=bands, photometric=photometric, **options
            ) as image_file,
            rasterio.open(draft / LABELS, 'w', count=1, **options) as label_file,
        ):
            for number in track(range(columns**2), description='Drawing the mosaic'):
                # The seeds of the dataset are pairs (seed, number of the image).
                image, shapes = draw_image(np.random.default_rng((seed, number, 1)), SIZE)
                y, x = SIZE * (number // columns), SIZE * (number % columns)
                window = Window(x, y, SIZE, SIZE)
                image_file.write(np.moveaxis(spread(image, bands), -1, 0), window=window)
                labels = label_map(shapes, SIZE) - BACKGROUND_LABEL
                label_file.write(labels, 1, window=window)
                for shape in shapes:
                    annotations.append(annotation_of(shape, len(annotations) + 1, 1, (x, y)))
        categories = [dict(id=i, name=name) for i, name in enumerate(CLASSES, 1)]
        images = [dict(id=1, file_name=IMAGE, width=side, height=side)]
        content = dict(images=images, annotations=annotations, categories=categories)
        (draft / INSTANCES).write_text(json.dumps(content))
        draft.rename(root)
