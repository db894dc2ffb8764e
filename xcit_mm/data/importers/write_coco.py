"""Annotation files in COCO's format, and a config, for a dataset of another format."""

import json
import math
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pprint import pformat
from typing import Any

from ...base.errors import UserError, printable
from ...base.files import require_writable, write_files
from ...base.shipped import commands
from ..audit.examples import Examples, missing_classes, refusal
from .base import IGNORED, SPLITS, ForeignDataset, absolute
from .contents import Contents, Images, read_contents, require_good

HELD_OUT = 10  # every tenth image is for validation if the dataset has no split for it
MAX_PRINTED = 50  # problems of labels

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


@dataclass(frozen=True)
class Layout:
    """How a dataset is written.

    Attributes:
        config: The text of the config, with the fields of ``_config_text`` in braces.
        content: Returns the content of the annotation file of a split, from the dataset, its images
            and the names of the classes.
    """

    config: str
    content: Callable[[Any, Images, Sequence[str]], dict[str, list[dict]]]


def convert(
    dataset: ForeignDataset,
    root: str | Path,
    base: Path,
    layout: Layout,
    skip_bad: bool = False,
) -> None:
    """Write annotation files for the splits and a config with ``base``, all of them or none.

    With ``skip_bad``, images that have unusable labels are left out, and any number of objects is
    cut.
    """
    root = Path(root)
    require_writable(root)
    contents = read_contents(dataset)
    if skip_bad or len(contents.problems) > 1:  # the error names a single one
        for problem in contents.problems[:MAX_PRINTED]:
            print(problem)
    if len(contents.problems) > MAX_PRINTED:
        print(f'... and {len(contents.problems) - MAX_PRINTED} more')
    if not skip_bad:
        require_good(dataset, contents)
    splits = _usable_splits(dataset, contents)
    classes = _classes(dataset, contents)
    config = root / f'{re.sub(r"[^0-9A-Za-z_]", "_", absolute(root).name) or "dataset"}.py'
    files = {config: _config_text(dataset, splits, classes, base, layout.config)}
    for split, images in splits.items():
        files[root / f'{split}.json'] = json.dumps(layout.content(dataset, images, classes))
    examples = {split: _examples(images, classes) for split, images in splits.items()}
    if why := refusal('train', examples['train'], classes):
        raise UserError(f'{dataset.folder}: {why}; nothing was written')
    lines = [_summary(split, images, classes) for split, images in splits.items()]
    lines += missing_classes(examples, classes)
    lines += [f'{remark}: {count}' for remark, count in contents.remarks.items() if count]
    contents_of_files = {path: text.encode() for path, text in files.items()}
    lines.append(write_files(root, contents_of_files, [root / f'{name}.json' for name in SPLITS]))
    path = shlex.quote(str(config))
    lines += ['Read every image, then train:', f'    tools/check_dataset.py {path}']
    for line in (*lines, f'    tools/train.py {path}'):
        print(printable(commands(line)))


def _examples(images: Images, classes: Sequence[str]) -> Examples:
    labels = [
        [classes.index(n) for n, fields in objects if n in classes and not fields['iscrowd']]
        for _, objects in images.values()
    ]
    return Examples.of('objects', labels, len(classes))


def _summary(split: str, images: Images, classes: Sequence[str]) -> str:
    counts = Counter(name for _, objects in images.values() for name, _ in objects)
    listed = ', '.join(f'{name} {counts[name]}' for name in classes)
    number = sum(counts[name] for name in classes)
    content = f'{_counted(len(images), "image")}, {_counted(number, "object")}'
    return f'{split}.json: {content}: {listed}'


def _counted(number: int, noun: str) -> str:
    return f'{number} {noun}{"s" * (number != 1)}'


def _classes(dataset: ForeignDataset, contents: Contents) -> list[str]:
    names = {name for _, objects in contents.images.values() for name, _ in objects} - {IGNORED}
    if not names:
        raise UserError(
            f'{dataset.folder}: no image has an object (labels are looked for in files such as '
            f'{next(iter(dataset.labels.values()))}): is it the right folder?'
        )
    return dataset.classes or sorted(names)


def _usable_splits(dataset: ForeignDataset, contents: Contents) -> dict[str, Images]:
    splits = {}
    for split in SPLITS:
        images = dataset.splits.get(split, ())
        usable = {image: contents.images[image] for image in images if image in contents.images}
        if usable:
            splits[split] = usable
    if 'train' not in splits and 'trainval' in splits:
        splits['train'] = splits.pop('trainval')
    train = splits.get('train', {})
    if not splits.keys() & {'val', 'test'}:
        images = [*train]
        held_out = images[HELD_OUT - 1 :: HELD_OUT] or images[-1:]
        splits['val'] = {image: train.pop(image) for image in held_out}
        remark = 'Images for validation, which the dataset has no split for'
        contents.remarks[remark] = len(held_out)
    if not train:
        raise UserError(f'{dataset.folder}: too few images to train on: is it the right folder?')
    for split in splits.keys() & {'val', 'test'}:
        shared = splits[split].keys() & train.keys()
        contents.remarks[f'Images of {split} that are also in train'] = len(shared)
    return splits


def coco_images(folder: Path, images: Images) -> list[dict[str, Any]]:
    """Return the entries of images in an annotation file, numbered from 1."""
    return [
        dict(id=number, file_name=path_below(folder, image), width=width, height=height)
        for number, (image, ((width, height), _)) in enumerate(images.items(), 1)
    ]


def path_below(folder: Path, path: Path) -> str:
    """Return a path relative to a folder if it is in it."""
    return (path.relative_to(folder) if path.is_relative_to(folder) else path).as_posix()


def _objects(
    dataset: ForeignDataset, images: Images, classes: Sequence[str]
) -> dict[str, list[dict]]:
    category_ids = {name: number for number, name in enumerate(classes, 1)}
    annotations = []
    for image_id, (_, objects) in enumerate(images.values(), 1):
        for name, fields in objects:
            # A crowd is ignored for one class only.
            for category in classes if name == IGNORED else [name]:
                ids = dict(image_id=image_id, category_id=category_ids[category])
                annotations.append(dict(id=len(annotations) + 1, **ids, **fields))
    categories = [dict(id=number, name=name) for name, number in category_ids.items()]
    infos = coco_images(dataset.folder, images)
    return dict(images=infos, annotations=annotations, categories=categories)


OBJECTS = Layout(CONFIG, _objects)


def _config_text(
    dataset: ForeignDataset,
    splits: Mapping[str, Images],
    classes: Sequence[str],
    base: Path,
    template: str,
) -> str:
    side = statistics.median(max(size) for size, _ in splits['train'].values())
    steps = EPOCHS * len(splits['train']) / IMAGES_PER_STEP
    return template.format(
        base=_literal(str(base.resolve())),
        data_root=_literal(f'{dataset.folder}/'),
        classes=_literal(tuple(classes)),
        num_things=dataset.num_things,
        scale=min(MAX_SCALE, 32 * math.ceil(side / 32)),
        max_iters=VALIDATION_INTERVAL * math.ceil(steps / VALIDATION_INTERVAL),
        images_per_step=IMAGES_PER_STEP,
        val='val' if 'val' in splits else 'test',
        test='test' if 'test' in splits else 'val',
    )


def _literal(value: object) -> str:
    """Return a Python literal without braces, which mmengine replaces in configs."""
    return pformat(value, width=90, compact=True).replace('{', r'\x7b')
