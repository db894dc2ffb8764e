"""Convert datasets that ``layouts.py`` reads to COCO annotation files and a config."""

import json
import math
import os
import re
import shlex
import statistics
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from pprint import pformat
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import track
from shapely import make_valid
from shapely.geometry import Polygon

from ..errors import UserError, looked_in, printable, reason
from ..files import open_regular, read_regular, require_writable, set_aside, write_whole
from .decode import EXIF_ORIENTATION, decode

SPLITS = ('train', 'val', 'trainval', 'test')
IMAGE_SUFFIXES = ('.bmp', '.jpeg', '.jpg', '.png', '.tif', '.tiff', '.webp')
HELD_OUT = 10  # every tenth image is for validation if the dataset has no split for it
TOLERANCE = 1.0  # pixels that a box may exceed the image: coordinates may start at 0 or 1
CUT = 'Objects that extend beyond the image, and are cut at its border'
MAX_PRINTED = 50  # problems of labels
MAX_CUT = 0.1  # if a larger fraction of the objects is cut, the labels have another format

# The recipe of the config.
IMAGES_PER_STEP = 8
EPOCHS = 10
VALIDATION_INTERVAL = 600  # steps
MAX_SCALE = 640  # pixels
CONFIG = '''\
"""Written by tools/prepare_data.py together with the annotation files. Edit it as you like."""

_base_ = {base}

data_root = {data_root}  # the folder of the images
data_help = dict(root=data_root, text='the images have moved: --cfg-options data_root=DIR')
folder = "{{{{ fileDirname }}}}/"  # the folder of this file and of the annotation files
classes = {classes}
scale = ({scale}, {scale})  # pixels: images are resized to fit into it
max_iters = {max_iters}  # steps with {images_per_step} images each

resize = dict(type='Resize', scale=scale, keep_ratio=True)
train_pipeline = [resize if t['type'] == 'Resize' else t for t in _base_.train_pipeline]
test_pipeline = [resize if t['type'] == 'Resize' else t for t in _base_.test_pipeline]

images = dict(data_prefix=dict(img=''), metainfo=dict(classes=classes, palette=None))
data = dict(data_root=data_root, **images)
train = dict(ann_file=folder + 'train.json', pipeline=train_pipeline, **data)
val = dict(ann_file=folder + '{val}.json', pipeline=test_pipeline, **data)
test = dict(ann_file=folder + '{test}.json', pipeline=test_pipeline, **data)
train_dataloader = dict(dataset=train)
val_dataloader = dict(dataset=val)
test_dataloader = dict(dataset=test)
val_evaluator = dict(ann_file=val['ann_file'])
test_evaluator = dict(ann_file=test['ann_file'])

model = dict(roi_head=dict(bbox_head=dict(num_classes=len(classes))))
train_cfg = dict(max_iters=max_iters)
warm_up, decay = _base_.param_scheduler
param_scheduler = [warm_up, dict(decay, end=max_iters)]
'''

Size = tuple[int, int]  # width and height in pixels


class LabelError(UserError):
    """An image or a label cannot be used; the message starts with the file."""


class LabelledDataset(ABC):
    """A dataset to convert; a subclass finds its images and reads their labels.

    It raises a LabelError for a file or a label that cannot be used.
    """

    def __init__(self, source: Path) -> None:
        if not source.exists():
            raise UserError(f'{source} does not exist{looked_in(source)}')
        # The ``data_root`` of the config.
        self.folder = absolute(source if source.is_dir() else source.parent)
        self.classes: list[str] = []  # in the order of the config; empty: those of the objects
        self.splits: dict[str, list[Path]] = {}  # absolute paths of images, by a name of SPLITS
        self.labels: dict[Path, Path] = {}  # the label file of each image
        self.problems: list[LabelError] = []  # what cannot be used
        self.remarks: Counter[str] = Counter()  # numbers for the report
        # The size of each usable image, and the class and the COCO annotation of its objects.
        self.contents: dict[Path, tuple[Size, list[tuple[str, dict]]]] = {}

    @abstractmethod
    def read_labels(self, file: Path) -> tuple[list[tuple[str, Any]], Size | None]:
        """Return the labels in a file, each with its place, and the size of the image if known."""

    @abstractmethod
    def parse_label(self, label: Any, size: Size, place: str) -> tuple[str, Sequence[float], bool]:
        """Return the class of an object, its shape, and whether the object is difficult.

        The shape is a box, x1, y1, x2, y2, or a polygon, x1, y1, x2, y2, x3, y3, ..., in pixels.
        """


def absolute(path: Path) -> Path:
    """Return an absolute path without resolving links."""
    return Path(os.path.abspath(path))  # noqa: PTH100  Path.absolute keeps '..'


def image_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob('*') if file.suffix.lower() in IMAGE_SUFFIXES)


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file, or raise a LabelError."""
    try:
        return read_regular(path)
    except OSError as error:
        raise LabelError(f'{path}: {error.strerror or reason(error)}') from None


def read_lines(path: Path) -> list[tuple[str, str]]:
    """Return the lines of a text that are not empty, each with its place as path:number."""
    try:
        text = read_bytes(path).decode('utf-8-sig')
    except UnicodeDecodeError as error:
        raise LabelError(f'{path}: not a text in UTF-8 ({error.reason})') from None
    lines = text.replace('\r\n', '\n').replace('\r', '\n').split('\n')
    return [(f'{path}:{i}', line.strip()) for i, line in enumerate(lines, 1) if line.strip()]


def read_numbers(words: Sequence[str | None], place: str) -> list[float]:
    """Return the numbers in texts, or raise a LabelError if they are not finite."""
    try:
        numbers = [float(word) for word in words]
    except (TypeError, ValueError):
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise LabelError(f'{place}: not finite numbers: {" ".join(map(str, words))}')
    return numbers


def check_names(names: Any, file: Path) -> list[str]:
    """Return the names of classes without surrounding space, or raise a UserError."""
    is_list = isinstance(names, list) and all(isinstance(n, str) and n.strip() for n in names)
    names = [' '.join(name.split()) for name in names] if is_list else []
    if not names or len(set(names)) < len(names):
        raise UserError(f'{file}: the class names are not a list of unique texts, numbered from 0')
    return names


def image_size(path: Path, annotated: Size | None = None) -> Size:
    """Return the size that :func:`decode` gives an image, or raise a LabelError."""
    try:
        with open_regular(path) as file, Image.open(file) as image:
            # PngImageFile.getexif decodes all pixels.
            if Image.Image.getexif(image).get(EXIF_ORIENTATION, 1) == 1:
                return image.size
        return decode(path.read_bytes(), annotated).shape[1::-1]
    except Exception as error:  # the decoders raise many types
        raise LabelError(
            f'{path}: the size of the image cannot be read ({reason(error)})'
        ) from None


def convert(dataset: LabelledDataset, root: str | Path, base: Path, skip_bad: bool = False) -> None:
    """Write annotation files for the splits and a config with ``base``, all of them or none.

    With ``skip_bad``, images that have unusable labels are left out, and any number of objects is
    cut.
    """
    root = Path(root)
    require_writable(root)
    _read_images(dataset)
    for problem in dataset.problems[:MAX_PRINTED]:
        print(problem)
    if len(dataset.problems) > MAX_PRINTED:
        print(f'... and {len(dataset.problems) - MAX_PRINTED} more')
    if not skip_bad:
        _require_good(dataset)
    splits = _usable_splits(dataset)
    names = {name for _, objects in dataset.contents.values() for name, _ in objects}
    if not names:
        raise UserError(
            f'{dataset.folder}: no image has an object (labels are looked for in files such as '
            f'{next(iter(dataset.labels.values()))}): is it the right folder?'
        )
    dataset.classes = dataset.classes or sorted(names)
    config = root / f'{re.sub(r"[^0-9A-Za-z_]", "_", absolute(root).name) or "dataset"}.py'
    files = {config: _config_text(dataset, splits, base)}
    lines = []
    for split, images in splits.items():
        files[root / f'{split}.json'] = json.dumps(_coco_content(dataset, images))
        counts = Counter(name for image in images for name, _ in dataset.contents[image][1])
        listed = ', '.join(f'{name} {counts[name]}' for name in dataset.classes)
        lines.append(f'{split}.json: {len(images)} images, {counts.total()} objects: {listed}')
    lines += [f'{remark}: {count}' for remark, count in dataset.remarks.items() if count]
    lines.append(_write_files(root, {path: text.encode() for path, text in files.items()}))
    path = shlex.quote(str(config))
    lines += ['Read every image, then train:', f'    tools/check_dataset.py {path}']
    for line in (*lines, f'    tools/train.py {path}'):
        print(printable(line))


def _read_images(dataset: LabelledDataset) -> None:
    images = dict.fromkeys(image for images in dataset.splits.values() for image in images)
    for image in track(images, 'Reading', console=Console(stderr=True)):
        file, objects, problems = dataset.labels[image], [], []
        try:
            labels, annotated = dataset.read_labels(file)
            size = image_size(image, annotated)
            if annotated not in (None, size):
                raise LabelError(f'{file}: size {annotated}, but {image} has {size} pixels')
        except LabelError as error:
            labels, problems = [], [error]
        for place, label in labels:
            try:
                name, shape, is_difficult = dataset.parse_label(label, size, place)
                fields = _annotation_fields(dataset, shape, size, place)
                objects.append((name, dict(fields, iscrowd=int(is_difficult))))
            except LabelError as error:
                problems.append(error)
        dataset.problems += problems
        # The whole image is left out: in training, a missing object would be background.
        if not problems:
            unique = {str(item): item for item in objects}
            dataset.remarks['Duplicate objects dropped'] += len(objects) - len(unique)
            dataset.remarks['Images without a label file, used as background'] += not file.exists()
            dataset.contents[image] = size, list(unique.values())
    dataset.remarks['Problems; the images are left out'] = len(dataset.problems)


def _annotation_fields(
    dataset: LabelledDataset, shape: Sequence[float], size: Size, place: str
) -> dict[str, Any]:
    corners = np.reshape(shape, (-1, 2))
    cut = corners.clip(0, size)
    is_box = len(corners) == 2
    for points, problem in ((corners, 'box of no size'), (cut, 'box outside the image')):
        extent = points[1] - points[0] if is_box else np.ptp(points, axis=0)
        if not (extent > 0).all():
            raise LabelError(f'{place}: {problem}')
    dataset.remarks[CUT] += bool(np.abs(corners - cut).max() > TOLERANCE)
    cut = cut.round(4)
    x1, y1, width, height = (*cut.min(axis=0), *np.ptp(cut, axis=0).round(4))
    bbox = [float(value) for value in (x1, y1, width, height)]
    if is_box:
        return dict(bbox=bbox, area=round(bbox[2] * bbox[3], 4))
    area = make_valid(Polygon(cut)).area  # also of an outline that crosses itself
    if area <= 0:
        raise LabelError(f'{place}: the outline encloses no area')
    return dict(bbox=bbox, area=round(area, 4), segmentation=[cut.ravel().tolist()])


def _require_good(dataset: LabelledDataset) -> None:
    if dataset.problems:
        raise UserError(
            f'{dataset.folder}: {len(dataset.problems)} images or labels cannot be used, such as '
            f'{dataset.problems[0]}; nothing was written: fix them, or leave out the images with '
            '--skip-bad'
        )
    num_cut = dataset.remarks[CUT]
    num_objects = sum(len(objects) for _, objects in dataset.contents.values())
    if num_cut > MAX_CUT * num_objects:
        raise UserError(
            f'{dataset.folder}: {num_cut} of {num_objects} objects extend beyond their image, so '
            'the labels may have another format (YOLO: x and y of the centre, width, height; VOC: '
            'two corners in pixels); nothing was written: correct them, or cut the objects with '
            '--skip-bad'
        )


def _usable_splits(dataset: LabelledDataset) -> dict[str, list[Path]]:
    splits = {}
    for split in SPLITS:
        images = dict.fromkeys(dataset.splits.get(split, ()))  # without duplicates
        usable = [image for image in images if image in dataset.contents]
        if usable:
            splits[split] = usable
    if 'train' not in splits and 'trainval' in splits:
        splits['train'] = splits.pop('trainval')
    images = splits.get('train', [])
    if not splits.keys() & {'val', 'test'}:
        held_out = dict.fromkeys(images[HELD_OUT - 1 :: HELD_OUT] or images[-1:])
        splits['train'] = [image for image in images if image not in held_out]
        splits['val'] = list(held_out)
        dataset.remarks['Training images used for validation instead'] = len(held_out)
    if not splits.get('train'):
        raise UserError(f'{dataset.folder}: too few images to train on: is it the right folder?')
    for split in splits.keys() & {'val', 'test'}:
        shared = set(splits[split]) & set(splits['train'])
        dataset.remarks[f'Images of {split} that are also in train'] = len(shared)
    return splits


def _coco_content(dataset: LabelledDataset, images: Sequence[Path]) -> dict[str, list[dict]]:
    category_ids = {name: number for number, name in enumerate(dataset.classes, 1)}
    infos, annotations = [], []
    for image_id, image in enumerate(images, 1):
        (width, height), objects = dataset.contents[image]
        path = image.relative_to(dataset.folder) if image.is_relative_to(dataset.folder) else image
        infos.append(dict(id=image_id, file_name=str(path), width=width, height=height))
        for name, fields in objects:
            ids = dict(image_id=image_id, category_id=category_ids[name])
            annotations.append(dict(id=len(annotations) + 1, **ids, **fields))
    categories = [dict(id=number, name=name) for name, number in category_ids.items()]
    return dict(images=infos, annotations=annotations, categories=categories)


def _config_text(dataset: LabelledDataset, splits: Mapping[str, Sequence[Path]], base: Path) -> str:
    side = statistics.median(max(dataset.contents[image][0]) for image in splits['train'])
    steps = EPOCHS * len(splits['train']) / IMAGES_PER_STEP
    return CONFIG.format(
        base=_literal(str(base.resolve())),
        data_root=_literal(f'{dataset.folder}/'),
        classes=_literal(tuple(dataset.classes)),
        scale=min(MAX_SCALE, 32 * math.ceil(side / 32)),
        max_iters=VALIDATION_INTERVAL * math.ceil(steps / VALIDATION_INTERVAL),
        images_per_step=IMAGES_PER_STEP,
        val='val' if 'val' in splits else 'test',
        test='test' if 'test' in splits else 'val',
    )


def _literal(value: object) -> str:
    """Return a Python literal without braces, which mmengine replaces in configs."""
    return pformat(value, width=90, compact=True).replace('{', r'\x7b')


def _write_files(root: Path, files: Mapping[Path, bytes]) -> str:
    """Write all files or none, and return what happened to those of an earlier call."""
    known = {*files, *(root / f'{split}.json' for split in SPLITS)}
    existing = [path for path in known if path.exists()]
    if {path: path.is_file() and path.read_bytes() for path in existing} == files:
        return 'Everything was already there'
    with ExitStack() as stack:  # at the end, the files get their names, the config last
        for path, content in files.items():
            stack.enter_context(write_whole(path)).write(content)
        aside = set_aside(root, existing, 'use another --root')
    return f'Earlier files are now in {aside}' if aside else f'Everything was written to {root}'
