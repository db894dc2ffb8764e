"""The built-in dataset: circles, squares and triangles, drawn in seconds.

One set of images in two layouts, so that a detector and a segmentor can be trained and tested
on a machine without COCO or ADE20k::

    <root>/coco/{train2017,val2017}/*.jpg
    <root>/coco/annotations/instances_{train,val}2017.json
    <root>/ade/images/{training,validation}/*.jpg
    <root>/ade/annotations/{training,validation}/*.png
    <root>/shapes.json    what was asked for, and a checksum of every file

Shapes overlap. As in COCO, a polygon is the visible part of its object; area and box are those
of the polygon. As in ADE20k, a label of 0 means unlabelled; 1 is the background.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import numpy as np
from pycocotools import mask as coco_mask
from rich.progress import track
from shapely.geometry import Polygon

from ..errors import UserError

CLASSES = ('circle', 'square', 'triangle')
CORNERS = {'circle': 40, 'square': 4, 'triangle': 3}
UPRIGHT = {'circle': 0.0, 'square': np.pi / 4, 'triangle': -np.pi / 2}  # angle of a corner
BACKGROUND_LABEL = 1  # of ADE20k's layout; class i has the label i + 2
SPLITS = {'train2017': 'training', 'val2017': 'validation'}  # COCO's name: ADE20k's
MANIFEST = 'shapes.json'

MIN_SIDE, MAX_SIDE = 0.28, 0.55  # of a shape, as a share of the image
MAX_TILT = np.pi / 12  # 15 degrees
MAX_OBJECTS = 4
MIN_VISIBLE = 0.75  # share of a shape that later ones must leave visible
MIN_CONTRAST = 60.0  # distance of a shape's mean colour to what it lies on, of 255 a channel
SUBPIXEL_BITS = 4  # of cv2's fixed-point coordinates


@dataclass(frozen=True)
class ShapesSpec:
    """What to draw: the same spec gives the same images.

    Attributes:
        num_train: Training images.
        num_val: Validation images.
        size: Side of the square images in pixels.
        seed: Of all randomness.
    """

    num_train: int = 400
    num_val: int = 40
    size: int = 160
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (('num_train', 1), ('num_val', 1), ('size', 32), ('seed', 0)):
            if getattr(self, name) < least:
                raise UserError(f'shapes: {name}={getattr(self, name)} is less than {least}')


@dataclass
class Shape:
    """An object of an image: its class (index into CLASSES) and its outlines in pixels."""

    category: int
    outline: np.ndarray  # (n, 2) x, y of the whole shape
    visible: Polygon


def make_shapes(root: str | Path, spec: ShapesSpec | None = None) -> bool:
    """Draw the dataset into ``root``, or verify that it is there already.

    The files are written into a temporary folder beside ``root`` and renamed when all are
    whole. A dataset of another spec, or with a missing or changed file, is drawn anew.

    Args:
        root: The folder to make.
        spec: What to draw.

    Returns:
        Whether anything was drawn: False if the dataset was there, whole.

    Raises:
        UserError: If ``root`` holds a file that this function did not make.
    """
    root, spec = Path(root).resolve(), spec or ShapesSpec()
    if root.exists() and not (root.is_dir() and not any(root.iterdir())):
        foreign = _foreign_files(root)
        if foreign == [root]:
            raise UserError(f'{root} is a file: name a folder')
        if foreign:
            raise UserError(
                f'{root} holds {foreign[0].name}, which is not of a shapes dataset; everything '
                'is left as it is: name another folder'
            )
        if is_whole(root, spec):
            return False
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        workspace = Path(tempfile.mkdtemp(prefix=f'.{root.name}-', dir=root.parent))
    except OSError as error:
        raise UserError(f'{root} cannot be made ({error}): name another folder') from None
    try:
        draft = workspace / 'new'
        draft.mkdir()
        _write(draft, spec)
        if root.exists():
            root.rename(workspace / 'old')
        draft.rename(root)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
    return True


def is_whole(root: str | Path, spec: ShapesSpec) -> bool:
    """Whether ``root`` holds the dataset of this spec, every file as it was written."""
    try:
        manifest = json.loads((Path(root) / MANIFEST).read_text())
    except (OSError, json.JSONDecodeError):
        return False
    return manifest == _manifest(Path(root), spec)


def _foreign_files(root: Path) -> list[Path]:
    """The files in ``root`` that its manifest does not list: all of them without one."""
    if not root.is_dir():
        return [root]
    try:
        listed = set(json.loads((root / MANIFEST).read_text())['sha256']) | {MANIFEST}
    except (OSError, ValueError, KeyError, TypeError):
        listed = set()
    return [
        p for p in root.rglob('*') if p.is_file() and p.relative_to(root).as_posix() not in listed
    ]


def draw_image(rng: np.random.Generator, size: int) -> tuple[np.ndarray, list[Shape]]:
    """Draw one image.

    Args:
        rng: The source of all randomness.
        size: Side in pixels.

    Returns:
        The image, (size, size, 3) uint8 RGB, and its shapes from back to front.
    """
    shapes = _place_shapes(rng, size)
    image = _texture(rng, size, contrast=30.0)
    for shape in shapes:
        paint = _paint(rng, image, shape)
        alpha = np.zeros((size, size), np.uint8)
        points = np.round((shape.outline - 0.5) * 2**SUBPIXEL_BITS).astype(np.int32)
        cv2.fillPoly(alpha, [points], 255, lineType=cv2.LINE_AA, shift=SUBPIXEL_BITS)
        weight = alpha[..., None] / np.float32(255)
        image = image * (1 - weight) + paint * weight
    return image.round().clip(0, 255).astype(np.uint8), shapes


def label_map(shapes: list[Shape], size: int) -> np.ndarray:
    """The ADE20k-style labels of an image's shapes: (size, size) uint8."""
    labels = np.full((size, size), BACKGROUND_LABEL, np.uint8)
    for shape in shapes:  # whole shapes, later ones over earlier ones: visible parts leave seams
        rle = coco_mask.frPyObjects([_flat(Polygon(shape.outline))], size, size)[0]
        labels[coco_mask.decode(rle) > 0] = shape.category + 2
    return labels


def _place_shapes(rng: np.random.Generator, size: int) -> list[Shape]:
    shapes: list[Shape] = []
    wanted = int(rng.integers(2, MAX_OBJECTS + 1))
    for _ in range(4 * wanted):  # a crowded image may end with fewer
        category = int(rng.integers(len(CLASSES)))
        outline = _outline(rng, category, size)
        polygon = Polygon(outline)
        covered = [shape.visible.difference(polygon) for shape in shapes]
        if all(_is_annotatable(c, s) for c, s in zip(covered, shapes, strict=True)):
            for shape, visible in zip(shapes, covered, strict=True):
                shape.visible = visible
            shapes.append(Shape(category, outline, polygon))
        if len(shapes) == wanted:
            break
    return shapes


def _is_annotatable(visible, shape: Shape) -> bool:
    """One outline without a hole, as COCO's polygons are, and enough of the shape left."""
    return (
        visible.geom_type == 'Polygon'
        and not visible.interiors
        and visible.area >= MIN_VISIBLE * Polygon(shape.outline).area
    )


def _outline(rng: np.random.Generator, category: int, size: int) -> np.ndarray:
    side = size * rng.uniform(MIN_SIDE, MAX_SIDE)
    corners = CORNERS[CLASSES[category]]
    # The circle through the corners; its diameter stays below the image's side.
    radius = side / 2 if corners > 4 else side / (2 * np.sin(np.pi / corners))
    angles = UPRIGHT[CLASSES[category]] + rng.uniform(-MAX_TILT, MAX_TILT)
    angles = angles + 2 * np.pi * np.arange(corners) / corners
    centre = rng.uniform(radius, size - radius, size=2)
    return centre + radius * np.stack((np.cos(angles), np.sin(angles)), axis=1)


def _paint(rng: np.random.Generator, image: np.ndarray, shape: Shape) -> np.ndarray:
    """An opaque texture that a person can tell from what is under the shape."""
    size = len(image)
    under = np.zeros((size, size), np.uint8)
    cv2.fillPoly(under, [shape.outline.round().astype(np.int32)], 1)
    below = image[under > 0].mean(axis=0)
    while True:
        paint = _texture(rng, size, contrast=15.0)
        if np.linalg.norm(paint.mean(axis=(0, 1)) - below) >= MIN_CONTRAST:
            return paint


def _texture(rng: np.random.Generator, size: int, contrast: float) -> np.ndarray:
    """A random colour with smooth blotches and fine grain, (size, size, 3) float32."""
    colour = rng.uniform(40, 215, size=3)
    coarse = rng.normal(size=(int(rng.integers(3, 12)),) * 2).astype(np.float32)
    blotches = cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC)
    grain = rng.normal(scale=5.0, size=(size, size, 3))
    tint = rng.uniform(0.5, 1.0, size=3)
    return (colour + contrast * blotches[..., None] * tint + grain).astype(np.float32)


def _flat(polygon: Polygon) -> list[float]:
    """COCO's form of a polygon: x1, y1, x2, y2, ..."""
    points = np.array(polygon.exterior.coords[:-1])
    return [round(float(v), 2) for v in points.reshape(-1)]


def _write(root: Path, spec: ShapesSpec) -> None:
    counts = dict(zip(SPLITS, (spec.num_train, spec.num_val), strict=True))
    first_id = 1
    for split, ade_split in SPLITS.items():
        ids = range(first_id, first_id + counts[split])
        first_id += counts[split]
        _write_split(root, split, ade_split, list(ids), spec)
    (root / MANIFEST).write_text(json.dumps(_manifest(root, spec), indent=1))


def _write_split(root: Path, split: str, ade_split: str, ids: list[int], spec: ShapesSpec) -> None:
    image_dirs = root / 'coco' / split, root / 'ade' / 'images' / ade_split
    label_dir = root / 'ade' / 'annotations' / ade_split
    annotation_dir = root / 'coco' / 'annotations'
    for folder in (*image_dirs, label_dir, annotation_dir):
        folder.mkdir(parents=True, exist_ok=True)

    images, annotations = [], []
    for image_id in track(ids, description=f'Drawing {split}'):
        # A generator per image: an image does not depend on how many come before it.
        rng = np.random.default_rng((spec.seed, image_id))
        image, shapes = draw_image(rng, spec.size)
        name = f'{image_id:012d}'
        for folder in image_dirs:
            _save(folder / f'{name}.jpg', image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 95])
        _save(label_dir / f'{name}.png', label_map(shapes, spec.size))
        images.append(dict(id=image_id, file_name=f'{name}.jpg', width=spec.size, height=spec.size))
        annotations += _coco_annotations(image_id, len(annotations) + 1, shapes)
    content = dict(
        images=images,
        annotations=annotations,
        categories=[dict(id=i + 1, name=name) for i, name in enumerate(CLASSES)],
    )
    (annotation_dir / f'instances_{split}.json').write_text(json.dumps(content))


def _coco_annotations(image_id: int, first_id: int, shapes: list[Shape]) -> Iterator[dict]:
    for i, shape in enumerate(shapes):
        x1, y1, x2, y2 = shape.visible.bounds
        yield dict(
            id=first_id + i,
            image_id=image_id,
            category_id=shape.category + 1,
            segmentation=[_flat(shape.visible)],
            area=round(shape.visible.area, 2),
            bbox=[round(v, 2) for v in (x1, y1, x2 - x1, y2 - y1)],
            iscrowd=0,
        )


def _save(path: Path, image: np.ndarray, parameters: list[int] | None = None) -> None:
    # OpenCV's own writing does not say what went wrong, such as a full disk.
    path.write_bytes(cv2.imencode(path.suffix, image, parameters or [])[1])


def _manifest(root: Path, spec: ShapesSpec) -> dict:
    def sha256(path: Path) -> str:
        return hashlib.sha256(path.read_bytes()).hexdigest()

    files = sorted(p for p in root.rglob('*') if p.is_file() and p.name != MANIFEST)
    return dict(
        drawn_by=sha256(Path(__file__)),  # other code may draw other images from the same spec
        spec=asdict(spec),
        sha256={p.relative_to(root).as_posix(): sha256(p) for p in files},
    )
