"""Datasets of other layouts become COCO's annotation files, and a config that trains on them.

The images stay where they are. ``voc.py`` and ``yolo.py`` read the layouts.
"""

import json
import math
import os
import re
import shlex
import statistics
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from pprint import pformat

from PIL import Image
from rich.console import Console
from rich.progress import track

from ..errors import UserError, printable, reason
from ..files import require_writable, set_aside, write_whole
from .annotations import LOST_SHARE, NO_SIZE, OUTSIDE
from .images import EXIF_ORIENTATION, BadImageError, Size, decode

SPLITS = ('train', 'val', 'trainval', 'test')
HELD_OUT = 10  # the tenth of every ten images validates, where the dataset has no split for it
MAX_BYTES = 2**26  # of a text: what has more is no label file
SUFFIXES = ('.bmp', '.jpeg', '.jpg', '.png', '.tif', '.tiff', '.webp')  # of images
OPENCV_ROTATES = ('JPEG', 'MPO')  # as EXIF says; for others that depends on its version
ON_THE_SIDE = range(5, 9)  # EXIF's orientations that exchange width and height
SLACK = 1.0  # pixels that a box may reach beyond its image unnoticed: 0 or 1 may be the first
CUT = 'objects reach beyond their image, and are cut there'
UNSAFE = '"\\\n{'  # what the path of a config cannot have where it stands in its text

# The recipe of the config.
IMAGES_A_STEP = 8
EPOCHS = 10
ROUND = 450  # iterations until a validation
MAX_SCALE = 640  # pixels
SCALE_STEP = 32
CONFIG = '''\
"""Written by tools/prepare_data.py, with the annotations beside it: change what does not fit."""

_base_ = {base}

data_root = {data_root}  # where the images are
data_help = dict(root=data_root, text='the images have moved: --cfg-options data_root=DIR')
folder = "{{{{ fileDirname }}}}/"  # where this file is, with the annotations
classes = {classes}
scale = ({scale}, {scale})  # pixels: images are resized to fit into it
max_iters = {max_iters}  # steps of {images_a_step} images

resize = dict(type='Resize', scale=scale, keep_ratio=True)
train_pipeline = [resize if t['type'] == 'Resize' else t for t in _base_.train_pipeline]
test_pipeline = [resize if t['type'] == 'Resize' else t for t in _base_.test_pipeline]

images = dict(data_prefix=dict(img=''), metainfo=dict(classes=classes, palette=None))
data = dict(data_root=data_root, **images)
train = dict(ann_file=folder + '{train}.json', pipeline=train_pipeline, **data)
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


class LabelError(UserError):
    """An image or a label that cannot be used; the message begins with the file and the line."""


@dataclass(slots=True)
class LabelledObject:
    """An object of an image.

    Attributes:
        name: Of its class.
        box: x1, y1, x2, y2 in pixels, within the image.
        polygon: x1, y1, x2, y2, ... in pixels, within the image; None: it has a box only.
        is_difficult: Whether it is neither to be learnt nor counted.
    """

    name: str
    box: tuple[float, ...]
    polygon: list[float] | None = None
    is_difficult: bool = False

    @property
    def area(self) -> float:
        """In square pixels: that of the polygon, or of the box."""
        x1, y1, x2, y2 = self.box
        if self.polygon is None:
            return (x2 - x1) * (y2 - y1)
        xs, ys = self.polygon[::2], self.polygon[1::2]
        following = zip(xs, ys, xs[1:] + xs[:1], ys[1:] + ys[:1], strict=True)
        return abs(sum(x * next_y - next_x * y for x, y, next_x, next_y in following)) / 2


class LabelledDataset(ABC):
    """A dataset that is to be converted.

    Args:
        folder: What the paths of its images are relative to.

    Attributes:
        folder: In full.
        classes: The names in the order of the config; empty: those that the objects have.
        splits: The images of each, in full; the names are among SPLITS.
        problems: What cannot be used, in the order in which it was found.
        notes: How often something was found that is worth a word.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = full(folder)
        self.classes: list[str] = []
        self.splits: dict[str, list[Path]] = {}
        self.problems: list[LabelError] = []
        self.notes: Counter[str] = Counter()

    @abstractmethod
    def read(self, image: Path) -> tuple[Size, list[LabelledObject]]:
        """The size and the objects of an image; what is wrong with an object is a problem.

        Raises:
            LabelError: If the whole of it cannot be used.
        """

    @abstractmethod
    def where_labels_are(self, image: Path) -> Path:
        """The file that an image's objects are looked for in."""

    def add_object(
        self, objects: list[LabelledObject], make: Callable[..., LabelledObject], *args: object
    ) -> None:
        """Make an object and take it, unless it is a problem."""
        try:
            objects.append(make(*args))
        except LabelError as error:
            self.problems.append(error)

    def within(self, numbers: Sequence[float], size: Size, place: str) -> tuple[float, ...]:
        """x1, y1, x2, y2, or a polygon in the same form, cut to the image.

        Raises:
            LabelError: If nothing of it lies in the image, or it has no size.
        """
        require_extent(numbers, f'{place}: {NO_SIZE}')
        limits = size * (len(numbers) // 2)
        cut = tuple(
            min(max(number, 0.0), limit) for number, limit in zip(numbers, limits, strict=True)
        )
        require_extent(cut, f'{place}: {OUTSIDE}')
        if any(abs(a - b) > SLACK for a, b in zip(numbers, cut, strict=True)):
            self.notes[CUT] += 1
        return tuple(round(number, 4) for number in cut)


def require_extent(numbers: Sequence[float], message: str) -> None:
    """Refuse corners without width or height."""
    xs, ys = numbers[::2], numbers[1::2]
    is_box = len(numbers) == 4
    width, height = (v[1] - v[0] if is_box else max(v) - min(v) for v in (xs, ys))
    if width <= 0 or height <= 0:
        raise LabelError(message)


def full(path: Path) -> Path:
    """The path from the root on, through links as they are named."""
    return Path(os.path.abspath(path))  # noqa: PTH100  resolve() follows links


def read_bytes(path: Path) -> bytes:
    """What is in a file of labels.

    Raises:
        LabelError: If it is missing, no regular file, or too large to be one.
    """
    try:
        if not path.is_file():
            raise LabelError(f'{path}: it is missing, or not a regular file')
        if path.stat().st_size > MAX_BYTES:
            raise LabelError(f'{path}: it has more than {MAX_BYTES // 2**20} MiB')
        return path.read_bytes()
    except OSError as error:
        raise LabelError(f'{path}: it cannot be read ({reason(error)})') from None


def read_lines(path: Path) -> list[tuple[str, str]]:
    """The lines of a text that are not empty, each behind its place.

    Raises:
        LabelError: As :func:`read_bytes`, or if it is no text.
    """
    try:
        lines = read_bytes(path).decode('utf-8-sig').split('\n')
    except UnicodeDecodeError as error:
        raise LabelError(f'{path}: it is not a text in UTF-8 ({error.reason})') from None
    return [(f'{path}:{i}', line.strip()) for i, line in enumerate(lines, 1) if line.strip()]


def read_number(text: str | None, place: str) -> float:
    """A number of a text.

    Raises:
        LabelError: If it is none, or not finite.
    """
    try:
        number = float(text or '')
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise LabelError(f'{place}: {text} is not a finite number')
    return number


def checked_names(names: Sequence[object], place: Path) -> list[str]:
    """The names of classes, without the space around them.

    Raises:
        UserError: If there are none, one is no text or empty, or two are the same.
    """
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise UserError(f'{place}: the names of the classes are not a list of texts')
    stripped = [' '.join(name.split()) for name in names]
    name, count = Counter(stripped).most_common(1)[0]
    if count > 1:
        raise UserError(f'{place}: {count} classes have the name {name}: name each otherwise')
    return stripped


def names_of_file(path: Path) -> list[str]:
    """The names of the classes in a text, one a line."""
    return checked_names([line for _, line in read_lines(path)], path)


def image_size(path: Path, annotated: Size | None = None) -> Size:
    """The size that ``LoadImage`` gives an image, from its head.

    Args:
        path: The image.
        annotated: The size that it should have: the rotation of EXIF is left out if the image
            has this size only without.

    Raises:
        LabelError: If it is missing, or no image.
    """
    try:
        if not path.is_file():
            raise LabelError(f'{path}: it is missing, or not a regular file')
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            with Image.open(path) as image:
                # Not PNG's own, which decodes the pixels.
                orientation = Image.Image.getexif(image).get(EXIF_ORIENTATION)
                if orientation not in ON_THE_SIDE:
                    return image.size
                if image.format in OPENCV_ROTATES:
                    return image.size if image.size == annotated else image.size[::-1]
        return decode(path.read_bytes(), annotated).shape[1::-1]
    except LabelError:
        raise
    except BadImageError as error:
        raise LabelError(f'{path}: {error}') from None
    except Exception as error:  # of PIL's many decoders
        raise LabelError(
            f'{path}: the size of the image cannot be read ({reason(error)})'
        ) from None


def convert(
    dataset: LabelledDataset,
    root: Path,
    base: Path,
    skip_bad: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Write a dataset's annotation files and its config into a folder, all of them or none.

    What an earlier call left there, and is not the same, is moved into ``earlier_*``.

    Args:
        dataset: What is to be converted.
        root: The folder, which is made.
        base: The config to inherit from.
        skip_bad: Leave out images with labels that cannot be used, instead of refusing them all,
            and cut objects at the border of their image however many reach beyond it.
        say: Is given what cannot be used and what is written, line by line.

    Raises:
        UserError: If something cannot be used, there is nothing to train on, or the folder cannot
            be written to.
    """
    root = Path(root)
    config = root / f'{re.sub(r"[^0-9A-Za-z_]", "_", full(root).name) or "dataset"}.py'
    if set(UNSAFE) & set(str(full(root))):
        raise UserError(
            f'{root}: a config cannot be in a folder with one of {UNSAFE!r} in its name'
        )
    require_writable(root)
    images = dict.fromkeys(chain.from_iterable(dataset.splits.values()))
    read: dict[Path, tuple[Size, list[LabelledObject]]] = {}
    for image in track(images, 'Reading', console=Console(stderr=True)):
        num_problems = len(dataset.problems)
        try:
            size, objects = dataset.read(image)
        except LabelError as error:
            dataset.problems.append(error)
            continue
        if len(dataset.problems) > num_problems:
            continue  # what it shows of an object that is left out would be background
        once = {(found.name, found.box, *(found.polygon or ())): found for found in objects}
        if len(once) < len(objects):
            dataset.notes['objects are written twice, taken once'] += len(objects) - len(once)
        read[image] = size, list(once.values())
    for problem in dataset.problems:
        say(str(problem))
    if dataset.problems and not skip_bad:
        raise UserError(
            f'{dataset.folder}: {len(dataset.problems)} labels or images cannot be used, the first '
            f'of them {dataset.problems[0]}; nothing is written: mend them, or leave them out with '
            '--skip-bad'
        )
    if dataset.problems:
        note = 'labels or images cannot be used: these images are left out'
        dataset.notes[note] = len(dataset.problems)
    num_objects = sum(len(objects) for _, objects in read.values())
    if dataset.notes[CUT] > LOST_SHARE * num_objects and not skip_bad:
        raise UserError(
            f'{dataset.folder}: {dataset.notes[CUT]} of {num_objects} objects reach beyond their '
            'image, so the labels may have another format (YOLO: x and y of the centre, width, '
            'height; VOC: two corners in pixels); nothing is written: correct them, or have them '
            'cut with --skip-bad'
        )

    splits = _usable_splits(dataset, read)
    names = {found.name for _, objects in read.values() for found in objects}
    if not names:
        place = dataset.where_labels_are(next(iter(images)))
        raise UserError(
            f'{dataset.folder}: no object in any of the {len(images)} images (those of the first '
            f'one were looked for in {place}): is it the right folder?'
        )
    classes = dataset.classes or sorted(names)
    files = {config: _config_text(dataset.folder, root, base, splits, read, classes)} | {
        root / f'{split}.json': json.dumps(_coco(dataset.folder, of_split, read, classes))
        for split, of_split in splits.items()
    }
    aside, is_new = _write(root, {path: text.encode() for path, text in files.items()})

    for split, of_split in splits.items():
        say(f'{root / split}.json: {_summary(of_split, read, classes)}')
    for note, count in dataset.notes.items():
        say(f'{count} {note}')
    say(f'classes = {printable(_literal(tuple(classes)))}')
    if aside:
        say(f'What an earlier call left there is in {aside}')
    say('Train:' if is_new else 'All of it was there already. Train:')
    say(f'    tools/train.py {shlex.quote(str(config))}')


def _usable_splits(dataset: LabelledDataset, read: Mapping[Path, object]) -> dict[str, list[Path]]:
    """The splits with the images that can be used, and one to validate on."""
    splits = {}
    for split in SPLITS:
        named = dataset.splits.get(split, [])
        once = list(dict.fromkeys(named))
        if len(once) < len(named):
            dataset.notes[f'images stand twice in {split}, taken once'] = len(named) - len(once)
        splits[split] = [image for image in once if image in read]
    splits = {split: images for split, images in splits.items() if images}
    first = _first_of(splits, 'train', 'trainval')
    if first is None:
        raise UserError(
            f'{dataset.folder}: there are no images to train on: is it the right folder?'
        )
    if _first_of(splits, 'val', 'test') is None:
        images = splits[first]
        if len(images) < 2:
            raise UserError(
                f'{dataset.folder}: one image is too few to train and to validate: add others'
            )
        splits['val'] = images[HELD_OUT - 1 :: HELD_OUT] or images[-1:]
        held_out = set(splits['val'])
        splits[first] = [image for image in images if image not in held_out]
        note = f'of the images of {first} are the split to validate on, as the dataset names none'
        dataset.notes[note] = len(held_out)
    for split in ('val', 'test'):
        shared = set(splits.get(split, ())) & set(splits[first])
        if shared:
            dataset.notes[f'images of {split} are in {first}, too'] = len(shared)
    return splits


def _first_of(splits: Mapping[str, object], *names: str) -> str | None:
    return next((name for name in names if name in splits), None)


def _coco(folder: Path, images: Sequence[Path], read: Mapping, classes: Sequence[str]) -> dict:
    numbers = {name: number for number, name in enumerate(classes, 1)}
    infos, annotations = [], []
    for image_id, image in enumerate(images, 1):
        (width, height), objects = read[image]
        name = image.relative_to(folder) if image.is_relative_to(folder) else image
        infos.append(dict(id=image_id, file_name=str(name), width=width, height=height))
        for found in objects:
            x1, y1, x2, y2 = found.box
            annotation = dict(
                id=len(annotations) + 1,
                image_id=image_id,
                category_id=numbers[found.name],
                bbox=[x1, y1, round(x2 - x1, 4), round(y2 - y1, 4)],
                area=round(found.area, 4),
                iscrowd=int(found.is_difficult),
            )
            if found.polygon is not None:
                annotation['segmentation'] = [found.polygon]
            annotations.append(annotation)
    categories = [dict(id=number, name=name) for name, number in numbers.items()]
    return dict(images=infos, annotations=annotations, categories=categories)


def _config_text(
    folder: Path,
    root: Path,
    base: Path,
    splits: Mapping[str, Sequence[Path]],
    read: Mapping[Path, tuple[Size, object]],
    classes: Sequence[str],
) -> str:
    train = _first_of(splits, 'train', 'trainval')
    side = statistics.median(max(read[image][0]) for image in splits[train])
    rounds = math.ceil(EPOCHS * len(splits[train]) / IMAGES_A_STEP / ROUND)
    clone, target = base.resolve().parents[1], root.resolve()
    if target.is_relative_to(clone):  # both may move
        base = os.path.relpath(base.resolve(), target)
    return CONFIG.format(
        base=_literal(str(base)),
        data_root=_literal(f'{folder}/'),
        classes=_literal(tuple(classes)),
        scale=min(MAX_SCALE, SCALE_STEP * math.ceil(side / SCALE_STEP)),
        max_iters=ROUND * rounds,
        images_a_step=IMAGES_A_STEP,
        train=train,
        val=_first_of(splits, 'val', 'test'),
        test=_first_of(splits, 'test', 'val'),
    )


def _literal(value: object) -> str:
    """A value as it stands in a config, whose text mmengine changes where it has two braces."""
    return pformat(value, width=90, compact=True).replace('{', r'\x7b')


def _write(root: Path, files: Mapping[Path, bytes]) -> tuple[Path | None, bool]:
    """Write files that take their names together; where to earlier ones went, and if it did."""
    known = files.keys() | {root / f'{split}.json' for split in SPLITS}
    there = sorted(path for path in known if path.exists())
    is_same = (path.is_file() and path.read_bytes() == files.get(path) for path in there)
    if len(there) == len(files) and all(is_same):
        return None, False
    with ExitStack() as stack:  # the first one, the config, takes its name last
        for path, content in files.items():
            stack.enter_context(write_whole(path)).write(content)
        aside = set_aside(root, there, 'name another --root')
    return aside, True


def _summary(images: Sequence[Path], read: Mapping, classes: Sequence[str]) -> str:
    of_images = [read[image][1] for image in images]
    counts = Counter(found.name for objects in of_images for found in objects)
    empty = sum(not objects for objects in of_images)
    listed = ', '.join(f'{name} {counts[name]}' for name in classes)
    return printable(
        f'{len(images)} images ({empty} without objects), {counts.total()} objects: {listed}'
    )
