"""Plant in a copy of the built-in shapes what is wrong with real data, and count it by kind.

A training on the result of :func:`plant_coco` or :func:`plant_ade` runs to its end if its
``max_bad_share`` is at least ``BAD_SHARE``; the other functions plant what stops a run.
"""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from xcit_mm.data.audit import annotations as kinds
from xcit_mm.data.transforms import decode as im

BAD_SHARE = 0.5
PIPELINE_FAILS = 'the pipeline fails on it'  # only in a run
UNLISTED = 10**6  # an id of no image and no category
FIRST_ID = 10**5  # of the annotations that are added
POLYGON = [10, 10, 100, 10, 100, 100]
# Of an image of 160x160 pixels.
PLANTED_ANNOTATIONS = [
    *((kinds.OUTSIDE, dict(bbox=box)) for box in ([200, 200, 20, 20], [-30, 0, 20, 20])),
    *((kinds.NO_SIZE, dict(bbox=[10, 10, *size])) for size in ([0, 20], [-20, -20], [0.5, 20])),
    *((kinds.NO_BOX, dict(bbox=box)) for box in (None, [10, 10, float('nan'), 20], [0, 0, '9', 9])),
    *((kinds.NO_MASK, dict(segmentation=mask)) for mask in (None, [])),
    *((kinds.BROKEN_MASK, dict(segmentation=mask)) for mask in (POLYGON, [POLYGON[:4]])),
    (kinds.BROKEN_MASK, dict(segmentation=[[*POLYGON[:5], float('inf')]])),
    (kinds.BROKEN_MASK, dict(segmentation=dict(size=[160, 160], counts=[10, 20]))),
    (kinds.BROKEN_MASK, dict(segmentation=dict(size=[160, 160], counts='abc'))),
    (kinds.BROKEN_PART, dict(segmentation=[POLYGON, [1e9] * 6])),
    (kinds.UNKNOWN_CATEGORY, dict(category_id=UNLISTED)),
    (kinds.NO_IMAGE, dict(image_id=UNLISTED)),
]


def encoded(image: np.ndarray | Image.Image, kind: str = 'JPEG', **kwargs) -> bytes:
    """An RGB image as a file of a kind."""
    file = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, kind, **kwargs)
    return file.getvalue()


def rotated(image: np.ndarray, orientation: int, kind: str = 'JPEG') -> bytes:
    """An image as stored, with an EXIF orientation in its header."""
    exif = Image.Exif()
    exif[im.EXIF_ORIENTATION] = orientation
    return encoded(image, kind, exif=exif)


def sixteen_bits(image: np.ndarray) -> bytes:
    """An RGB or gray image as a PNG of 16 bits a channel."""
    return cv2.imencode('.png', image[..., ::-1].astype(np.uint16) * 257)[1].tobytes()


@contextmanager
def edited(path: Path) -> Iterator[dict]:
    """Write what a block changes in the content of a JSON file."""
    content = json.loads(path.read_text())
    yield content
    path.write_text(json.dumps(content))


def plant_coco(root: Path) -> dict[str, int]:
    """Plant in the training split of COCO's layout, and return how many of each kind."""
    ann_file = root / 'coco/annotations/instances_train2017.json'
    with edited(ann_file) as content:
        images, annotations = content['images'], content['annotations']
        files = [root / 'coco/train2017' / image['file_name'] for image in images]
        planted = _plant_images(files)
        files[0].unlink()
        files[9].write_bytes(encoded(_pixels(files[10])[:60, :80]))
        planted |= {im.MISSING: 1, im.OTHER_SIZE: 1, PIPELINE_FAILS: 1}

        # Annotated as stored, as shown with its EXIF orientation, one pixel wide; no usable object.
        files[13].write_bytes(files[11].read_bytes())
        changed = {11: (160, 120), 13: (120, 160), 12: (1, 160), 17: (160, 160), 18: (160, 160)}
        ids = [images[i]['id'] for i in changed]
        annotations[:] = [entry for entry in annotations if entry['image_id'] not in ids]
        for i, (width, height) in changed.items():
            images[i] |= dict(width=width, height=height)
            if i < 17:
                annotations.append(
                    _annotation(FIRST_ID + i, images[i], [0, 20, min(50, width), 60])
                )
        annotations.append(
            _annotation(FIRST_ID + 18, images[18], [0, 0, 9, 9]) | dict(bbox=[300] * 4)
        )

        for i, (kind, change) in enumerate([(kinds.OUTSIDE, {}), *PLANTED_ANNOTATIONS]):
            planted[kind] = planted.get(kind, 0) + 1
            if change:
                entry = _annotation(FIRST_ID + 20 + i, images[14 + i % 3], [10, 10, 100, 100])
                annotations.append(entry | change)
    return planted


def plant_coco_evaluation(root: Path) -> dict[str, int]:
    """Plant in the validation split of COCO's layout what stops an evaluation."""
    ann_file = root / 'coco/annotations/instances_val2017.json'
    with edited(ann_file) as content:
        unreadable, image = content['images'][:2]
        (root / 'coco/val2017' / unreadable['file_name']).write_bytes(b'no image')
        fields = {kinds.NO_AREA: 'area', kinds.NO_CROWD_FLAG: 'iscrowd', kinds.NO_BOX: 'bbox'}
        fields |= {kinds.NO_MASK: 'segmentation'}
        for number, field in enumerate(fields.values(), FIRST_ID):
            annotation = _annotation(number, image, [10, 10, 50, 50])
            del annotation[field]
            content['annotations'].append(annotation)
        content['annotations'].append(_annotation(FIRST_ID + 9, image, [300, 300, 20, 20]))
    return dict.fromkeys(fields, 1) | {kinds.OUTSIDE: 1, im.UNREADABLE: 1}


def plant_ade(root: Path) -> dict[str, int]:
    """Plant in the training split of ADE20k's layout; see :func:`plant_coco`."""
    files = sorted((root / 'ade/images/training').iterdir())
    labels = [root / f'ade/annotations/training/{file.stem}.png' for file in files]
    planted = _plant_images(files)
    labels[0].unlink()
    labels[10].write_bytes(labels[10].read_bytes()[:100])
    for i, size in ((9, (80, 60)), (11, (160, 120)), (12, (1, 160))):
        Image.open(labels[i]).crop((0, 0, *size)).save(labels[i])
    bad_labels = im.LABELS_MISSING, im.LABELS_OF_OTHER_SIZE, im.LABELS_UNREADABLE
    return planted | dict.fromkeys(bad_labels, 1) | {PIPELINE_FAILS: 1}


def _plant_images(files: list[Path]) -> dict[str, int]:
    files[1].write_bytes(files[1].read_bytes()[:-1000])
    files[2].write_bytes(encoded(_pixels(files[2]), 'PNG')[:-1000])
    files[3].write_bytes(b'')
    files[4].write_bytes(b'<html>404 Not Found</html>')
    files[6].write_bytes(encoded(Image.open(files[6]).convert('L')))
    files[7].write_bytes(encoded(Image.open(files[7]).convert('CMYK')))
    files[8].write_bytes(sixteen_bits(_pixels(files[8])))
    files[11].write_bytes(rotated(_pixels(files[11])[:120], 6))
    files[12].write_bytes(encoded(_pixels(files[12])[:, :1]))
    return {im.CUT_OFF: 2, im.EMPTY: 1, im.UNREADABLE: 1}


def _annotation(number: int, image: dict, box: list[float]) -> dict:
    x, y, width, height = box
    return dict(
        id=number,
        image_id=image['id'],
        category_id=1,
        bbox=box,
        area=width * height,
        iscrowd=0,
        segmentation=[[x, y, x + width, y, x + width, y + height, x, y + height]],
    )


def _pixels(file: Path) -> np.ndarray:
    return np.asarray(Image.open(file))
