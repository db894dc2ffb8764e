"""The config of a segmentor for images and their label images."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...config.start import Start
from ..transforms.decode import Size
from .config_text import (
    HEAD,
    SCHEDULE,
    head_fields,
    literal,
    normalization,
    relative,
    start_fields,
)
from .image_bands import Header
from .read_masks import Masks
from .write_coco import split_fields

BASE = 'fine_tune_sem_fpn_xcit_t12_16'
LABELS = 'class_labels'  # the folder of label images that are written
SHORT_SIDE, LONG_SIDE = 512, 2048  # pixels that larger images are resized to, as ADE20k's

START = """\
labels = {labels}  # the folder of the label images
reduce_zero_label = {reduces_zero}  # True: 0 is unlabeled, and 1 is the first class
metainfo = dict(classes=classes{palette})
"""
IMAGES = """\
crop_size = ({crop}, {crop})  # pixels of the parts of images that are trained on
scale = ({long}, {short})  # pixels: images are resized to fit into it

load = {load}
load_labels = dict(type='LoadLabels', reduce_zero_label=reduce_zero_label)
train_pipeline = [
    load,
    load_labels,
    dict(type='RandomResize', scale=scale, ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
{distortion}    dict(type='PackSegInputs'),
]
test_pipeline = [
    load,
    dict(type='Resize', scale=scale, keep_ratio=True),
    load_labels,  # after Resize, which would resize them
    dict(type='PackSegInputs'),
]
data = dict(
    _delete_=True,
    type='SegmentationFolders',
    data_root=data_root,
    data_prefix=dict(img_path='', seg_map_path=labels),
    seg_map_suffix={label_suffix},
    reduce_zero_label=reduce_zero_label,
    metainfo=metainfo,
)
train = dict(ann_file=folder + 'train.txt', pipeline=train_pipeline, **data)
val = dict(ann_file=folder + '{val}.txt', pipeline=test_pipeline, **data)
test = dict(ann_file=folder + '{test}.txt', pipeline=test_pipeline, **data)
train_dataloader = dict(batch_size={batch_size}, dataset=train)
val_dataloader = dict(dataset=val)
test_dataloader = dict(dataset=test)
"""
SCENES = """\
crop_size = ({crop}, {crop})  # pixels of the windows that are trained on

stream = dict(train=False, memory='2GiB')  # whole images are evaluated, and windows are trained
scenes = dict(
    _delete_=True,
    data_root=data_root,
    data_prefix=dict(img='', labels=labels),
    img_suffix={image_suffix},
    label_suffix={label_suffix},
    reduce_zero_label=reduce_zero_label,
    metainfo=metainfo,
)
train_pipeline = [
    dict(type='ReadWindow'{bands}),
    dict(type='RandomFlip', prob=0.5),
{distortion}    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='OpenImage'{bands}),
    dict(type='OpenLabels', may_be_empty=True),
    dict(type='PackScene'),
]
windows = dict(type='SceneWindows', window={crop}, balanced={balanced}, pipeline=train_pipeline)
whole = dict(type='Scenes', test_mode=True, pipeline=test_pipeline)
train = dict(ann_file=folder + 'train.txt', **windows, **scenes)
val = dict(ann_file=folder + '{val}.txt', **whole, **scenes)
test = dict(ann_file=folder + '{test}.txt', **whole, **scenes)
train_dataloader = dict(batch_size={batch_size}, dataset=train)
in_this_process = dict(num_workers=0, persistent_workers=False, timeout=0)
val_dataloader = dict(dataset=val, **in_this_process)
test_dataloader = dict(dataset=test, **in_this_process)
"""
MODEL = """
load_from = {load_from}
model = dict(
    data_preprocessor=dict(size=crop_size{statistics}),
    backbone={backbone},
    neck=dict(in_channels=[{channels}] * 4, out_channels={channels}),
    decode_head=dict(
        in_channels=[{channels}] * 4,
        num_classes=len(classes),
        out_channels=len(classes),
    ),
)
"""


class Statistics(NamedTuple):
    """The mean and the standard deviation of each band."""

    mean: Sequence[float]
    std: Sequence[float]


def config_of_masks(
    root: Path, masks: Masks, start: Start, statistics_of_bands: Statistics | None
) -> str:
    """Return the text of the config in a folder."""
    classes, common, train = masks.classes, masks.common, masks.pairs.splits['train']
    sizes = [masks.headers[pair.image].size for pair in train]
    crop, long, short = _scale(sizes)
    number = sum(math.ceil(w / crop) * math.ceil(h / crop) for w, h in sizes)
    fields = dict(
        **head_fields(BASE, masks.pairs.images, root, classes.names),
        **start_fields(start, root, number if masks.are_scenes else len(train), BASE),
        **split_fields(masks.pairs.splits),
        labels=relative(masks.pairs.labels if masks.stay else root / LABELS, root, is_folder=True),
        reduces_zero=classes.reduces_zero,
        palette=f', palette={literal(classes.palette)}' if classes.palette else '',
        crop=crop,
        long=long,
        short=short,
        balanced=bool(masks.examples['train'].counts.all()),
        load="dict(type='LoadImage')",
        bands='',
        distortion="    dict(type='PhotoMetricDistortion'),\n",
        statistics=f', {normalization(start)}' if start.normalization else '',
        label_suffix=literal(label_suffix(masks)),
        image_suffix=literal(train[0].image.suffix),
        metric='mIoU',
    )
    if common is not None:
        fields |= _fields_of_bands(common, statistics_of_bands, fields['backbone'])
    body = SCENES if masks.are_scenes else IMAGES
    return (HEAD + START + body + MODEL + SCHEDULE).format(**fields)


def _fields_of_bands(common: Header, measured: Statistics, backbone: str) -> dict[str, str]:
    """Return the fields that differ for images of other bands than red, green and blue."""
    options = f'channels={common.bands}' + (f', rgb={common.rgb}' if common.rgb else '')
    mean, std = (', '.join(f'{value:.6g}' for value in values) for values in measured)
    return dict(
        load=f"dict(type='LoadMultiband', {options})",
        bands=f', bands=dict({options})',
        distortion='',
        statistics=(
            ",\n        type='MultibandPreprocessor',\n        base='SegDataPreProcessor',\n"
            f'        mean=[{mean}],\n        std=[{std}],\n        bgr_to_rgb=False,\n    '
        ),
        backbone=f'dict({backbone}, in_channels={common.bands})',
    )


def _scale(sizes: Sequence[Size]) -> tuple[int, int, int]:
    """Return the side of crops, and the sides of the box that images are resized to fit into."""
    short = 32 * math.ceil(statistics.median(map(min, sizes)) / 32)
    if short > SHORT_SIDE:
        return SHORT_SIDE, LONG_SIDE, SHORT_SIDE
    return short, 32 * math.ceil(statistics.median(map(max, sizes)) / 32), short


def label_suffix(masks: Masks) -> str:
    """Return the suffix of label images: TIFF files are read by windows, and have a place."""
    if masks.stay:
        return masks.all_pairs[0].end
    have_places = any(p.label.suffix.lower() in ('.tif', '.tiff') for p in masks.all_pairs)
    return '.tif' if masks.are_scenes or have_places else '.png'
