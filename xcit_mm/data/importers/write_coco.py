"""Annotation files in COCO's format, and a config, for a dataset of another format."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.errors import UserError
from ...base.files import require_writable, write_files
from ...config.start import SMALL_NECK, Start
from ..audit.examples import Examples, missing_classes, refusal
from .base import IGNORED, SPLITS, ForeignDataset
from .config_text import (
    HEAD,
    SCALE,
    SCHEDULE,
    config_path,
    head_fields,
    print_next,
    scale_of,
    start_fields,
)
from .contents import Contents, Images, read_contents, require_good

HELD_OUT = 10  # every tenth image is for validation if the dataset has no split for it

SMALL_BASE = 'faster_rcnn_xcit_n12_16_small'  # from scratch, for few pixels and classes
BASE_OF_MASKS = 'fine_tune_mask_rcnn_xcit_t12_16'
BASE_OF_BOXES = 'fine_tune_faster_rcnn_xcit_t12_16'
CONFIG = (
    HEAD
    + SCALE
    + """
sizes = ('Resize', 'RandomResize')
train_pipeline = [dict(t, scale=scale) if t['type'] in sizes else t for t in _base_.train_pipeline]
test_pipeline = [dict(t, scale=scale) if t['type'] in sizes else t for t in _base_.test_pipeline]

images = dict(data_prefix=dict(img=''), metainfo=dict(classes=classes, palette=None))
data = dict(data_root=data_root, **images)
train = dict(ann_file=folder + 'train.json', pipeline=train_pipeline, **data)
val = dict(ann_file=folder + '{val}.json', pipeline=test_pipeline, **data)
test = dict(ann_file=folder + '{test}.json', pipeline=test_pipeline, **data)
train_dataloader = dict(batch_size={batch_size}, dataset=train)
val_dataloader = dict(dataset=val)
test_dataloader = dict(dataset=test)
val_evaluator = dict(ann_file=val['ann_file'])
test_evaluator = dict(ann_file=test['ann_file'])

load_from = {load_from}
heads = dict(num_classes=len(classes))
model = dict(
    backbone={backbone},
{normalization}    neck=dict(in_channels=[{channels}] * 4),
    roi_head=dict({heads}),
)
"""
    + SCHEDULE
)


@dataclass(frozen=True)
class Layout:
    """How a dataset is written.

    Attributes:
        config: Returns the text of the config in ``root``, from the dataset, the images of its
            splits, and the names of the classes.
        content: Returns the content of the annotation file of a split, from the dataset, its images
            and the names of the classes.
    """

    config: Callable[[Any, Path, Mapping[str, Images], Sequence[str]], str]
    content: Callable[[Any, Images, Sequence[str]], dict[str, list[dict]]]


def convert(
    dataset: ForeignDataset, root: str | Path, layout: Layout, skip_bad: bool = False
) -> None:
    """Write annotation files for the splits and a config, all of them or none.

    With ``skip_bad``, images that have unusable labels are left out, and any number of objects is
    cut.
    """
    root = Path(root)
    contents = read_contents(dataset)
    contents.problems.print_all(skip_bad)
    if not skip_bad:
        require_good(dataset, contents)
    splits = _usable_splits(dataset, contents)
    classes = _classes(dataset, contents)
    config = config_path(root)
    files = {config: layout.config(dataset, root, splits, classes)}
    for split, images in splits.items():
        files[root / f'{split}.json'] = json.dumps(layout.content(dataset, images, classes))
    examples = {split: _examples(images, classes) for split, images in splits.items()}
    if why := refusal('train', examples['train'], classes):
        raise UserError(f'{dataset.folder}: {why}; nothing was written')
    require_writable(root)
    lines = [_summary(split, images, classes) for split, images in splits.items()]
    lines += missing_classes(examples, classes)
    lines += [f'{remark}: {count}' for remark, count in contents.remarks.items() if count]
    contents_of_files = {path: text.encode() for path, text in files.items()}
    lines.append(write_files(root, contents_of_files, [root / f'{name}.json' for name in SPLITS]))
    print_next(lines, config)


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


def objects(start: Start) -> Layout:
    """Return the layout of boxes, and of masks if all objects have one."""

    def config(
        dataset: ForeignDataset, root: Path, splits: Mapping[str, Images], classes: Sequence[str]
    ) -> str:
        is_small = start.arch == 'n12' and (start.is_scratch or start.neck_channels == SMALL_NECK)
        with_masks = not is_small and all(map(_have_masks, splits.values()))
        base = SMALL_BASE if is_small else BASE_OF_MASKS if with_masks else BASE_OF_BOXES
        heads = ('bbox_head', 'mask_head') if with_masks else ('bbox_head',)
        train = splits['train'].values()
        return CONFIG.format(
            **head_fields(base, dataset.folder, root, classes),
            **start_fields(start, root, len(train), base),
            **split_fields(splits),
            scale=scale_of([size for size, _ in train]),
            heads=', '.join(f'{head}=heads' for head in heads),
            metric=f'coco/{"segm" if with_masks else "bbox"}_mAP',
        )

    return Layout(config, _objects)


def split_fields(splits: Mapping[str, Images]) -> dict[str, str]:
    """Return the names of the splits that a config validates and tests with."""
    return dict(
        val='val' if 'val' in splits else 'test', test='test' if 'test' in splits else 'val'
    )


def _have_masks(images: Images) -> bool:
    objects = [fields for _, objects in images.values() for _, fields in objects]
    return all('segmentation' in fields for fields in objects)
