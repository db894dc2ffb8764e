"""The built-in dataset: circles, squares and triangles, in the layouts of COCO and ADE20k.

Shapes overlap. As in COCO, a polygon outlines the visible part of its object, and area and box
belong to the polygon. As in COCO's panoptic files, the color of a pixel is the id of its segment:
an object, or the background. As in ADE20k, label 0 means unlabeled; label 1 is the background.
"""

import io
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
from pycocotools import mask as coco_mask
from rich.progress import track
from shapely.affinity import translate
from shapely.geometry import Polygon

from ...base.environment import require
from ...base.errors import UserError
from ...base.files import move_folder, require_writable, write_json, writing_to

CLASSES = ('circle', 'square', 'triangle')
CORNERS = (40, 4, 3)  # of each class
UPRIGHT = (0.0, np.pi / 4, -np.pi / 2)  # angle of a corner of each class
STUFF = 'background'  # the last category of the panoptic files
BACKGROUND_LABEL = 1  # in ADE20k's layout; class i has the label i + 2
RGB = 3
SPLITS = {'train2017': 'training', 'val2017': 'validation'}  # COCO's name: ADE20k's name
MANIFEST = 'shapes.json'

MIN_SIDE, MAX_SIDE = 0.28, 0.55  # of a shape, relative to the image
MAX_TILT = np.pi / 12  # 15 degrees
MAX_OBJECTS = 4
MIN_VISIBLE = 0.75  # fraction of a shape that later shapes leave visible
MIN_CONTRAST = 60.0  # distance between the mean colors of a shape and its background, 0 to 255
SUBPIXEL_BITS = 4  # of cv2's fixed-point coordinates


@dataclass(frozen=True)
class ShapesSpec:
    """The parameters of a dataset. The same parameters draw the same images."""

    num_train: int = 400
    num_val: int = 40
    size: int = 160  # width and height of the images in pixels
    seed: int = 0  # not negative
    bands: int = 3  # other numbers: TIFF images, for tests of images with many bands


@dataclass
class Shape:
    """An object in an image: the index of its class in CLASSES and its outlines in pixels."""

    category: int
    outline: np.ndarray  # (n, 2) x, y of the whole shape
    visible: Polygon


def make_shapes(root: str | Path, spec: ShapesSpec) -> bool:
    """Draw the dataset into a new or empty folder, and return False if it was already there."""
    if spec.bands != RGB:
        require('tifffile')
    manifest = dict(spec=asdict(spec))
    if is_drawn(root, manifest):
        return False
    with new_folder(root) as draft:
        _draw_dataset(draft, spec)
        write_json(draft / MANIFEST, manifest)
    return True


def is_drawn(root: str | Path, manifest: dict[str, Any]) -> bool:
    """Return whether a folder contains the dataset with a manifest."""
    with suppress(OSError, ValueError):
        return json.loads(Path(root, MANIFEST).read_text(encoding='utf-8')) == manifest
    return False


@contextmanager
def new_folder(root: str | Path) -> Iterator[Path]:
    """Yield a folder that becomes ``root`` if the block ends without an error."""
    root = Path(root).resolve()
    if root.is_file() or (root.is_dir() and any(root.iterdir())):
        raise UserError(f'{root} exists: move it away, or name another folder')
    require_writable(root.parent)
    temporary = TemporaryDirectory(prefix=f'.{root.name}-', dir=root.parent)
    with writing_to(root), temporary as folder, warnings.catch_warnings():
        warnings.simplefilter('ignore')  # about images without a georeference
        draft = Path(folder, 'draft')
        draft.mkdir()
        yield draft
        move_folder(draft, root)


def draw_image(rng: np.random.Generator, size: int) -> tuple[np.ndarray, list[Shape]]:
    """Return an image, (size, size, 3) uint8 RGB, and its shapes from back to front."""
    shapes = _place_shapes(rng, size)
    image = texture(rng, size, contrast=30.0)
    for shape in shapes:
        paint = _paint(rng, image, shape)
        alpha = np.zeros((size, size), np.uint8)
        points = np.round((shape.outline - 0.5) * 2**SUBPIXEL_BITS).astype(np.int32)
        cv2.fillPoly(alpha, [points], 255, lineType=cv2.LINE_AA, shift=SUBPIXEL_BITS)
        weight = alpha[..., None] / np.float32(255)
        image = image * (1 - weight) + paint * weight
    return image.round().clip(0, 255).astype(np.uint8), shapes


def spread(image: np.ndarray, bands: int) -> np.ndarray:
    """Interpolate red, green and blue to ``bands`` bands, (H, W, bands) uint8."""
    shares = np.stack([np.interp(np.linspace(0, 2, bands), range(RGB), row) for row in np.eye(RGB)])
    return (image @ shares).round().astype(np.uint8)


def label_map(shapes: list[Shape], size: int) -> np.ndarray:
    """Return the labels of an image in ADE20k's format, (size, size) uint8."""
    labels = [BACKGROUND_LABEL, *(shape.category + 2 for shape in shapes)]
    return np.array(labels, np.uint8)[segment_map(shapes, size)]


def segment_map(shapes: list[Shape], size: int) -> np.ndarray:
    """Return 0 for the background and i + 1 for the shape i at each pixel, (size, size) uint8."""
    segments = np.zeros((size, size), np.uint8)
    for number, shape in enumerate(shapes, 1):  # whole shapes: visible parts would leave gaps
        rle = coco_mask.frPyObjects([_flat(Polygon(shape.outline))], size, size)[0]
        segments[coco_mask.decode(rle) > 0] = number
    return segments


def _place_shapes(rng: np.random.Generator, size: int) -> list[Shape]:
    shapes: list[Shape] = []
    wanted = int(rng.integers(2, MAX_OBJECTS + 1))
    for _ in range(4 * wanted):  # a crowded image may end with fewer
        category = int(rng.integers(len(CLASSES)))
        outline = _outline(rng, category, size)
        polygon = Polygon(outline)
        remaining = [shape.visible.difference(polygon) for shape in shapes]
        if all(
            visible.geom_type == 'Polygon'
            and not visible.interiors  # a COCO polygon cannot have holes
            and visible.area >= MIN_VISIBLE * Polygon(shape.outline).area
            for visible, shape in zip(remaining, shapes, strict=True)
        ):
            for shape, visible in zip(shapes, remaining, strict=True):
                shape.visible = visible
            shapes.append(Shape(category, outline, polygon))
        if len(shapes) == wanted:
            break
    return shapes


def _outline(rng: np.random.Generator, category: int, size: int) -> np.ndarray:
    side = size * rng.uniform(MIN_SIDE, MAX_SIDE)
    corners = CORNERS[category]
    # The circle through the corners; its diameter stays below the image's side.
    radius = side / 2 if corners > 4 else side / (2 * np.sin(np.pi / corners))
    angles = UPRIGHT[category] + rng.uniform(-MAX_TILT, MAX_TILT)
    angles = angles + 2 * np.pi * np.arange(corners) / corners
    center = rng.uniform(radius, size - radius, size=2)
    return center + radius * np.stack((np.cos(angles), np.sin(angles)), axis=1)


def _paint(rng: np.random.Generator, image: np.ndarray, shape: Shape) -> np.ndarray:
    """Return a texture with a visible contrast to the image under the shape."""
    size = len(image)
    under = np.zeros((size, size), np.uint8)
    cv2.fillPoly(under, [shape.outline.round().astype(np.int32)], 1)
    below = image[under > 0].mean(axis=0)
    while True:
        paint = texture(rng, size, contrast=15.0)
        if np.linalg.norm(paint.mean(axis=(0, 1)) - below) >= MIN_CONTRAST:
            return paint


def texture(rng: np.random.Generator, size: int, contrast: float) -> np.ndarray:
    """Return a random color with smooth blotches and fine grain, (size, size, 3) float32."""
    color = rng.uniform(40, 215, size=3)
    coarse = rng.normal(size=(int(rng.integers(3, 12)),) * 2).astype(np.float32)
    blotches = cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC)
    grain = rng.normal(scale=5.0, size=(size, size, 3))
    tint = rng.uniform(0.5, 1.0, size=3)
    return (color + contrast * blotches[..., None] * tint + grain).astype(np.float32)


def annotation_of(
    shape: Shape, number: int, image_id: int, corner: tuple[int, int] = (0, 0)
) -> dict:
    """Return the annotation of a shape in COCO's format; ``corner`` (x, y) is added to it."""
    visible = translate(shape.visible, *corner)
    x1, y1, x2, y2 = visible.bounds
    return dict(
        id=number,
        image_id=image_id,
        category_id=shape.category + 1,
        segmentation=[_flat(visible)],
        area=round(visible.area, 2),
        bbox=[round(v, 2) for v in (x1, y1, x2 - x1, y2 - y1)],
        iscrowd=0,
    )


def _flat(polygon: Polygon) -> list[float]:
    """Return COCO's format of a polygon: x1, y1, x2, y2, ..."""
    points = np.array(polygon.exterior.coords[:-1])
    return [round(float(v), 2) for v in points.reshape(-1)]


def _segments_info(segments: np.ndarray, shapes: list[Shape]) -> list[dict]:
    """Describe the segments of an image as COCO's panoptic files do; ids start with 1."""
    categories = [len(CLASSES), *(shape.category for shape in shapes)]
    masks = [(segments == number).astype(np.uint8) for number in range(len(categories))]
    return [
        dict(id=i, category_id=c + 1, area=int(m.sum()), bbox=cv2.boundingRect(m), iscrowd=0)
        for i, (c, m) in enumerate(zip(categories, masks, strict=True), 1)
    ]


def _encode(image: np.ndarray, bands: int) -> tuple[str, bytes]:
    """Return the suffix and the content of an image file."""
    if bands == RGB:
        # Not cv2.imwrite: it does not report why it fails, for example on a full disk.
        jpeg = cv2.imencode('.jpg', image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 95])[1]
        return '.jpg', jpeg.tobytes()
    from tifffile import imwrite

    file = io.BytesIO()
    imwrite(file, spread(image, bands), photometric='minisblack', planarconfig='contig')
    return '.tif', file.getvalue()


def _draw_dataset(root: Path, spec: ShapesSpec) -> None:
    first_val = spec.num_train + 1
    ids = range(1, first_val), range(first_val, first_val + spec.num_val)
    for (split, ade_split), image_ids in zip(SPLITS.items(), ids, strict=True):
        coco_images, ade_images = root / 'coco' / split, root / 'ade' / 'images' / ade_split
        labels, annotation_dir = root / f'ade/annotations/{ade_split}', root / 'coco/annotations'
        panoptic_dir = annotation_dir / f'panoptic_{split}'
        for folder in (coco_images, ade_images, labels, panoptic_dir):
            folder.mkdir(parents=True, exist_ok=True)
        images, annotations, panoptic = [], [], []
        for image_id in track(image_ids, description=f'Drawing {split}'):
            # A generator for each image: it does not depend on the number of images before it.
            image, shapes = draw_image(np.random.default_rng((spec.seed, image_id)), spec.size)
            segments = segment_map(shapes, spec.size)
            suffix, encoded = _encode(image, spec.bands)
            file_name, png_name = f'{image_id:012d}{suffix}', f'{image_id:012d}.png'
            (coco_images / file_name).write_bytes(encoded)
            (ade_images / file_name).write_bytes(encoded)
            png = cv2.imencode('.png', label_map(shapes, spec.size))[1]
            (labels / png_name).write_bytes(png)
            ids_as_bgr = np.dstack([0 * segments, 0 * segments, segments + 1])
            (panoptic_dir / png_name).write_bytes(cv2.imencode('.png', ids_as_bgr)[1])
            images.append(dict(id=image_id, file_name=file_name, width=spec.size, height=spec.size))
            info = _segments_info(segments, shapes)
            panoptic.append(dict(image_id=image_id, file_name=png_name, segments_info=info))
            for shape in shapes:
                annotations.append(annotation_of(shape, len(annotations) + 1, image_id))
        categories = [dict(id=i, name=name) for i, name in enumerate(CLASSES, 1)]
        content = dict(images=images, annotations=annotations, categories=categories)
        path = annotation_dir / f'instances_{split}.json'
        path.write_text(json.dumps(content), encoding='utf-8')
        things = [dict(category, isthing=1) for category in categories]
        stuff = dict(id=len(CLASSES) + 1, name=STUFF, isthing=0)
        content = dict(images=images, annotations=panoptic, categories=[*things, stuff])
        path = annotation_dir / f'panoptic_{split}.json'
        path.write_text(json.dumps(content), encoding='utf-8')
