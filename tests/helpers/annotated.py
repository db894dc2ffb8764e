"""Images with annotated objects of all kinds, in COCO's format."""

import json
from pathlib import Path

import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask

SIZE = 60, 40
CLASSES = ['circle', 'square', 'triangle']
BOX = [3.25, 4.5, 20.125, 10.75]  # x, y, width, height
TRIANGLE = [5.5, 30.25, 20.125, 38.75, 2.0, 37.5]


def masks() -> dict[str, np.ndarray]:
    """A mask with two parts and a hole, one of the whole image, and one of its last pixel."""
    parts, last = np.zeros((2, *SIZE[::-1]), bool)
    parts[5:20, 30:50] = parts[25:30, 40:45] = True
    parts[8:12, 35:40] = False
    last[-1, -1] = True
    return dict(parts=parts, whole=np.ones(SIZE[::-1], bool), last=last)


def write_annotated(root: Path) -> Path:
    """Write a.png with a box, a mask and a polygon, b.png with masks, and c.png without objects."""
    (root / 'images/below').mkdir(parents=True)
    names = 'a.png', 'below/b.png', 'c.png'
    images = []
    for number, name in enumerate(names, 1):
        Image.new('RGB', SIZE, (40 * number,) * 3).save(root / 'images' / name)
        file = str(root / 'images' / name)
        images.append(dict(id=number, file_name=file, width=SIZE[0], height=SIZE[1]))
    left, top, right, bottom = 2.0, 30.25, 20.125, 38.75
    around = [left, top, right - left, bottom - top]
    annotations = [dict(image_id=1, category_id=1, bbox=BOX, score=0.75)]
    annotations.append(
        dict(image_id=1, category_id=3, bbox=around, segmentation=[TRIANGLE], score=0.5)
    )
    for name, mask in masks().items():
        rle = dict(size=[*SIZE[::-1]], counts=runs(mask))
        shape = dict(bbox=coco_mask.toBbox(rle).tolist(), segmentation=rle, score=0.25)
        annotations.append(dict(image_id=1 if name == 'parts' else 2, category_id=2, **shape))
    annotations = [dict(annotation, id=i) for i, annotation in enumerate(annotations, 1)]
    categories = [dict(id=i, name=name) for i, name in enumerate(CLASSES, 1)]
    path = root / 'predictions.json'
    content = dict(images=images, annotations=annotations, categories=categories)
    path.write_text(json.dumps(content))
    return path


def runs(mask: np.ndarray) -> str:
    """Return the run lengths of a mask as COCO has them."""
    return coco_mask.encode(np.asfortranarray(mask, np.uint8))['counts'].decode()
