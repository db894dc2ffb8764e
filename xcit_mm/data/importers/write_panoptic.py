"""Annotation files and a config for a panoptic dataset. Its PNG files stay where they are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...config.start import Start
from .coco_panoptic import ForeignPanopticDataset
from .config_text import HEAD, SCALE, SCHEDULE, head_fields, scale_of, start_fields
from .contents import Images
from .write_coco import Layout, coco_images, path_below, split_fields

BASE = 'mask2former_panoptic_xcit_n12_16_shapes'
CONFIG = (
    HEAD
    + SCALE
    + """\
things = {num_things}  # the first classes; the others are stuff
stuff = len(classes) - things

resize = dict(type='Resize', scale=scale, keep_ratio=True)
load, load_labels, *rest = _base_.train_pipeline
train_pipeline = [load, load_labels, resize, *rest]
test_pipeline = [resize if t['type'] == 'Resize' else t for t in _base_.test_pipeline]

metainfo = dict(
    classes=classes,
    thing_classes=classes[:things],
    stuff_classes=classes[things:],
    palette=None,
)
data = dict(data_root=data_root, data_prefix=dict(img='', seg=''), metainfo=metainfo)
train = dict(ann_file=folder + 'train.json', pipeline=train_pipeline, **data)
val = dict(ann_file=folder + '{val}.json', pipeline=test_pipeline, **data)
test = dict(ann_file=folder + '{test}.json', pipeline=test_pipeline, **data)
train_dataloader = dict(dataset=train)
val_dataloader = dict(dataset=val)
test_dataloader = dict(dataset=test)
quality = dict(type='PanopticQualityMetric', seg_prefix=data_root)
val_evaluator = dict(_delete_=True, ann_file=val['ann_file'], **quality)
test_evaluator = dict(_delete_=True, ann_file=test['ann_file'], **quality)

numbers = dict(num_things_classes=things, num_stuff_classes=stuff)
loss = dict(class_weight=[1.0] * len(classes) + [0.1])
model = dict(
    panoptic_head=dict(loss_cls=loss, **numbers),
    panoptic_fusion_head=numbers,
)
"""
    + SCHEDULE
)


def _segments(
    dataset: ForeignPanopticDataset, images: Images, classes: Sequence[str]
) -> dict[str, list[dict]]:
    category_ids = {name: number for number, name in enumerate(classes, 1)}
    annotations = [
        dict(
            image_id=image_id,
            file_name=path_below(dataset.folder, dataset.png_files[image]),
            segments_info=[
                _segment(segment['id'], category_ids[name], fields)
                for segment, (name, fields) in zip(dataset.segments[image], objects, strict=True)
            ],
        )
        for image_id, (image, (_, objects)) in enumerate(images.items(), 1)
    ]
    categories = [
        dict(id=number, name=name, isthing=int(number <= dataset.num_things))
        for name, number in category_ids.items()
    ]
    infos = coco_images(dataset.folder, images)
    return dict(images=infos, annotations=annotations, categories=categories)


def _segment(segment_id: int, category_id: int, fields: dict[str, Any]) -> dict[str, Any]:
    measured = {name: fields[name] for name in ('bbox', 'area', 'iscrowd')}
    return dict(id=segment_id, category_id=category_id, **measured)


def _config(
    dataset: ForeignPanopticDataset,
    root: Path,
    splits: Mapping[str, Images],
    classes: Sequence[str],
) -> str:
    train = splits['train'].values()
    return CONFIG.format(
        **head_fields(BASE, dataset.folder, root, classes),
        **start_fields(Start('n12'), root, len(train), BASE),
        **split_fields(splits),
        scale=scale_of([size for size, _ in train]),
        num_things=dataset.num_things,
        metric='coco_panoptic/PQ',
    )


PANOPTIC = Layout(_config, _segments)
