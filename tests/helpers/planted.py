"""A copy of the built-in shapes with everything in it that real data has: what is planted, by kind.

A training on what :func:`plant_coco` and :func:`plant_ade` leave runs to its end, if its
``max_bad_share`` is at least ``BAD_SHARE``; what the others plant stops a run.
"""

import io
import json
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from xcit_mm.datasets import annotations as of
from xcit_mm.datasets import images as im
from xcit_mm.datasets.check import PIPELINE_FAILS

BAD_SHARE = 0.5
UNLISTED = 10**6  # an id of no image and no category
FIRST_ID = 10**5  # of the annotations that are added


def encoded(image: np.ndarray | Image.Image, kind: str = 'JPEG', **kwargs) -> bytes:
    """An RGB image as a file of a kind."""
    file = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, kind, **kwargs)
    return file.getvalue()


def rotated(image: np.ndarray, orientation: int, kind: str = 'JPEG') -> bytes:
    """An image as stored, with the orientation of EXIF in its head."""
    exif = Image.Exif()
    exif[im.EXIF_ORIENTATION] = orientation
    return encoded(image, kind, exif=exif)


def sixteen_bits(image: np.ndarray) -> bytes:
    """An RGB image as a PNG of 16 bits a channel."""
    return cv2.imencode('.png', image[..., ::-1].astype(np.uint16) * 257)[1].tobytes()


def no_pixels() -> bytes:
    """A PNG of 0x5 pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        checksum = struct.pack('>I', zlib.crc32(name + data))
        return struct.pack('>I', len(data)) + name + data + checksum

    head = struct.pack('>IIBBBBB', 0, 5, 8, 2, 0, 0, 0)
    data = chunk(b'IHDR', head) + chunk(b'IDAT', zlib.compress(b'\0' * 5)) + chunk(b'IEND', b'')
    return b'\x89PNG\r\n\x1a\n' + data


def plant_coco(root: Path) -> dict[str, int]:
    """Plant in the training split of COCO's layout.

    Args:
        root: Of a shapes dataset with at least 20 training images, which is changed.

    Returns:
        How many of each kind.
    """
    ann_file = root / 'coco/annotations/instances_train2017.json'
    content = json.loads(ann_file.read_text())
    files = [root / 'coco/train2017' / image['file_name'] for image in content['images']]
    planted = _plant_bad(files[1:6]) | _plant_converted(files[6:9])
    files[0].unlink()
    files[9].write_bytes(encoded(_pixels(files[10])[:60, :80]))
    planted |= {im.MISSING: 1, im.OTHER_SIZE: 1, PIPELINE_FAILS: 1}  # the last: one pixel wide

    images, annotations = content['images'], content['annotations']
    stored = _pixels(files[10])[:120]  # 160x120
    sizes = {10: (160, 120), 11: (120, 160)}
    for i in sizes:
        files[i].write_bytes(rotated(stored, 6))
    files[12].write_bytes(encoded(_pixels(files[12])[:, :1]))
    for i, size in (sizes | {12: (1, 160)}).items():
        images[i] |= dict(zip(('width', 'height'), size, strict=True))
    of_resized = {images[i]['id']: images[i] for i in (10, 11, 12)}
    annotations[:] = [a for a in annotations if a['image_id'] not in of_resized]
    annotations += [
        _annotation(number, image, [0, 20, min(50, image['width']), 60])
        for number, image in enumerate(of_resized.values(), FIRST_ID)
    ]
    planted[im.ROTATED] = 2

    planted |= _plant_annotations(content, images[13:17])
    empty, hopeless = images[17], images[18]
    without = (empty['id'], hopeless['id'])
    annotations[:] = [a for a in annotations if a['image_id'] not in without]
    annotations.append(_annotation(FIRST_ID + 90, hopeless, [300, 300, 20, 20]))
    planted[of.OUTSIDE] += 1
    planted[of.NO_OBJECTS] = 2
    ann_file.write_text(json.dumps(content))
    return planted


def plant_coco_evaluation(root: Path) -> dict[str, int]:
    """Plant in the validation split of COCO's layout what stops an evaluation."""
    ann_file = root / 'coco/annotations/instances_val2017.json'
    content = json.loads(ann_file.read_text())
    image, *others = content['images']
    (root / 'coco/val2017' / image['file_name']).write_bytes(b'no image')
    changes = {of.NO_AREA: 'area', of.NO_CROWD_FLAG: 'iscrowd', of.NO_BOX: 'bbox'}
    changes |= {of.NO_MASK: 'segmentation'}
    for number, name in enumerate(changes.values(), FIRST_ID):
        annotation = _annotation(number, others[0], [10, 10, 50, 50])
        del annotation[name]
        content['annotations'].append(annotation)
    content['annotations'].append(_annotation(FIRST_ID + 9, others[0], [300, 300, 20, 20]))
    ann_file.write_text(json.dumps(content))
    return dict.fromkeys(changes, 1) | {of.OUTSIDE: 1, im.UNREADABLE: 1}


def plant_ade(root: Path) -> dict[str, int]:
    """Plant in the training split of ADE20k's layout; see :func:`plant_coco`."""
    files = sorted((root / 'ade/images/training').iterdir())
    labels = [root / f'ade/annotations/training/{file.stem}.png' for file in files]
    planted = _plant_bad(files[1:6]) | _plant_converted(files[6:9])
    labels[0].unlink()
    Image.open(labels[9]).crop((0, 0, 80, 60)).save(labels[9])
    labels[10].write_bytes(labels[10].read_bytes()[:100])
    files[11].write_bytes(rotated(_pixels(files[11])[:120], 6))
    Image.open(labels[11]).crop((0, 0, 160, 120)).save(labels[11])
    files[12].write_bytes(encoded(_pixels(files[12])[:, :1]))
    Image.open(labels[12]).crop((0, 0, 1, 160)).save(labels[12])
    kinds = im.LABELS_MISSING, im.LABELS_OF_OTHER_SIZE, im.LABELS_UNREADABLE, im.ROTATED
    return planted | dict.fromkeys((*kinds, PIPELINE_FAILS), 1)


def plant_wrong_labels(root: Path, split: str) -> int:
    """Plant labels of no class in a split of ADE20k's layout; returns in how many files."""
    files = sorted((root / 'ade/annotations' / split).iterdir())[-3:]
    for file, label in zip(files, (5, 254, 44), strict=True):
        labels = np.array(Image.open(file))
        labels[5, 7] = label
        Image.fromarray(labels).save(file)
    return len(files)


def _plant_bad(files: list[Path]) -> dict[str, int]:
    cut_off, cut_off_png, empty, unreadable, nothing = files
    cut_off.write_bytes(cut_off.read_bytes()[:-1000])
    cut_off_png.write_bytes(encoded(_pixels(cut_off_png), 'PNG')[:-1000])
    empty.write_bytes(b'')
    unreadable.write_bytes(b'<html>404 Not Found</html>')
    nothing.write_bytes(no_pixels())
    return {im.CUT_OFF: 2, im.EMPTY: 1, im.UNREADABLE: 2}


def _plant_converted(files: list[Path]) -> dict[str, int]:
    gray, cmyk, deep = files
    gray.write_bytes(encoded(Image.open(gray).convert('L')))
    cmyk.write_bytes(encoded(Image.open(cmyk).convert('CMYK')))
    deep.write_bytes(sixteen_bits(_pixels(deep)))
    return {im.GRAYSCALE: 1, im.CMYK: 1, im.SIXTEEN_BITS: 1}


def _plant_annotations(content: dict, images: list[dict]) -> dict[str, int]:
    """Beside the good ones of images of 160x160."""
    good = [10, 10, 100, 10, 100, 100]
    boxes = {
        of.OUTSIDE: [[200, 200, 20, 20], [-30, 0, 20, 20], [160, 10, 5, 5]],
        of.NO_SIZE: [[10, 10, 0, 20], [50, 50, -20, -20], [5, 5, 0.5, 20]],
        of.NO_BOX: [[10, 10, float('nan'), 20], [1, 2, 3], '1 2 3 4', None, [0, 0, '9', 9]],
    }
    masks = {
        of.NO_MASK: [None, [], ''],
        of.BROKEN_MASK: [
            [good[:5]],
            [good[:4]],
            good,
            [[*good[:5], float('nan')]],
            [[*good[:5], float('inf')]],
            [[*good[:5], 1e9]],
            [['10', *good[1:]]],
            dict(size=[160, 160], counts=[10, 20]),
            dict(size=[160, 160], counts=[25610, -10]),
            dict(size=[80, 160], counts=[80 * 160]),
            dict(size=[160, 160], counts='abc'),
            dict(size=[160, 160]),
            7,
        ],
        of.BROKEN_PART: [[good, good[:4]], [good, [1e9] * 6]],
    }
    new = [
        *((dict(bbox=box), kind) for kind, given in boxes.items() for box in given),
        *((dict(segmentation=mask), kind) for kind, given in masks.items() for mask in given),
        (dict(category_id=UNLISTED), of.UNKNOWN_CATEGORY),
        (dict(image_id=UNLISTED), of.NO_IMAGE),
    ]
    planted: dict[str, int] = {}
    for i, (change, kind) in enumerate(new):
        annotation = _annotation(FIRST_ID + 10 + i, images[i % len(images)], [10, 10, 100, 100])
        content['annotations'].append(annotation | change)
        planted[kind] = planted.get(kind, 0) + 1
    return planted


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
