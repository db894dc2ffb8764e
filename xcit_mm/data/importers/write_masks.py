"""Lists of images, label images where they are needed, and a config, for a folder of masks."""

import io
import math
import shlex
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import track

from ...base.errors import UserError, printable
from ...base.files import require_writable, unfinished_folder, write_files
from ...base.shipped import commands
from ...config.adapt import adapt
from ...config.load import load_config
from ...config.start import IMAGENET, RELEASED, Start, find_start
from ..audit.band_statistics import band_statistics
from ..audit.examples import PIXELS, Examples, missing_classes, refusal
from ..tiff.tiff_bands import DRIVER, opened_tiff
from ..transforms.decode import Size, require_same_place
from .base import SPLITS, LabelError, absolute, named
from .color_table import read_colors
from .config_text import (
    HEAD,
    SCHEDULE,
    config_path,
    head_fields,
    literal,
    normalization,
    relative,
    start_fields,
)
from .image_bands import Header, common_bands, read_header
from .mask_classes import (
    Classes,
    classes_of_colors,
    classes_of_numbers,
    counted,
    read_label,
    stored_size,
    values_of,
)
from .mask_pairs import Pair, Pairs, find_pairs
from .write_coco import MAX_PRINTED, split_fields

BASE = 'fine_tune_sem_fpn_xcit_t12_16'
ADE20K = 'ade20k'
LABELS = 'class_labels'  # the folder of label images that are written
MAX_SIDE = 2048  # pixels; of larger images, windows are trained on
SHORT_SIDE, LONG_SIDE = 512, 2048  # pixels that larger images are resized to, as ADE20k's
FEW = 16  # images that one process reads alone

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


@dataclass(frozen=True)
class Statistics:
    """The mean and the standard deviation of each band."""

    mean: Sequence[float]
    std: Sequence[float]


@dataclass
class Masks:
    """What has been read of the pairs in two folders.

    Attributes:
        pairs: The pairs.
        classes: What the values in the label images mean.
        headers: The header of each image.
        common: The header of images that are no RGB images, or None.
        counts: The number of pixels of each value in each label image.
        are_plain: Whether all label images hold numbers in one band.
    """

    pairs: Pairs
    classes: Classes
    headers: dict[Path, Header]
    common: Header | None
    counts: dict[Path, dict[int, int]]
    are_plain: bool

    @property
    def all_pairs(self) -> list[Pair]:
        return [pair for pairs in self.pairs.splits.values() for pair in pairs]

    @property
    def are_scenes(self) -> bool:
        return max(max(header.size) for header in self.headers.values()) > MAX_SIDE

    def examples(self, pairs: Sequence[Pair]) -> Examples:
        """Return the numbers of pixels of each class in the labels of pairs."""
        counts = [self.classes.counts(self.counts[pair.label]) for pair in pairs]
        first, *others = [Examples.of_counts(PIXELS, of_label) for of_label in counts]
        return sum(others, first)

    @property
    def stay(self) -> bool:
        """Whether the label images are used where they are."""
        ends = {pair.end for pair in self.all_pairs}
        return self.are_plain and self.classes.as_stored and len(ends) == 1 and None not in ends


def convert_masks(
    images: Path,
    labels: Path,
    root: Path,
    *,
    names: Sequence[str] | None = None,
    colors: Path | None = None,
    reduces_zero: bool = False,
    start: str | None = None,
    size: str | None = None,
    skip_bad: bool = False,
) -> None:
    """Write lists of the images, label images where needed, and a config, all of them or none.

    Args:
        images: The folder of the images, which stay where they are.
        labels: The folder of their label images.
        root: The folder to write to.
        names: The classes. Default: numbers, or the names in ``colors``.
        colors: A file with the class of each color, see :func:`.read_colors`.
        reduces_zero: Whether 0 is unlabeled, and 1 is the first class.
        start: What the training starts from, see :func:`.find_start`.
        size: The name of an architecture.
        skip_bad: Whether to leave out pairs that cannot be used.

    Raises:
        UserError: If something cannot be used; nothing is written.
    """
    if colors is not None and reduces_zero:
        raise UserError(
            '--reduce-zero-label is about numbers, not about colors: give the color of unlabeled '
            'pixels the name __ignore__ in the file of --colors'
        )
    root = Path(root)
    table = None if colors is None else read_colors(Path(colors))
    pairs = find_pairs(Path(images), Path(labels))
    masks = _read(pairs, table, colors, names, reduces_zero, skip_bad)
    found = _start(masks, start, size)
    require_writable(root)
    examples = {split: masks.examples(of_split) for split, of_split in pairs.splits.items()}
    if why := refusal('train', examples['train'], masks.classes.names):
        raise UserError(f'{pairs.labels}: {why}; nothing was written')
    files = _lists(masks) | ({} if masks.stay else _labels(masks))
    balanced = bool(examples['train'].counts.all())
    lines = [_summary(split, e, masks.classes.names) for split, e in examples.items()]
    statistics_of_bands = None
    if masks.common is not None:
        statistics_of_bands, remarks = _measure(root, masks, found, balanced, files)
        lines += remarks
    config = config_path(root)
    text = _config(root, masks, found, balanced, statistics_of_bands)
    lines += missing_classes(examples, masks.classes.names)
    lines += [f'{remark}: {count}' for remark, count in pairs.remarks.items() if count]
    lines += filter(None, [masks.classes.remark])
    contents = {config: text.encode(), **{root / name: data for name, data in files.items()}}
    earlier = [root / f'{split}.txt' for split in SPLITS]
    if not pairs.labels.is_relative_to(absolute(root / LABELS)):
        earlier += filter(Path.is_file, (root / LABELS).rglob('*'))
    lines.append(write_files(root, contents, earlier))
    path = shlex.quote(str(config))
    lines += ['Read every image, then train:', f'    tools/check_dataset.py {path}']
    for line in (*lines, f'    tools/train.py {path}'):
        print(printable(commands(line)))


def _read(
    pairs: Pairs,
    table: Mapping[int, str] | None,
    colors: Path | None,
    names: Sequence[str] | None,
    reduces_zero: bool,
    skip_bad: bool,
) -> Masks:
    headers, counts, are_plain = {}, {}, True
    listed = [pair for of_split in pairs.splits.values() for pair in of_split]
    for pair in track(listed, 'Reading', console=Console(stderr=True)):
        with pairs.problems.noted(pair.label):
            size = stored_size(pair.label)
            with named(pair.image):
                header = read_header(pair.image, size)
            if header.size != size:
                raise LabelError(
                    f'{pair.label}: {size[0]}x{size[1]} pixels, but {pair.image} has '
                    f'{header.size[0]}x{header.size[1]}: write the labels in the size of the image'
                )
            require_same_place(str(pair.label), str(pair.image), size[::-1])
            label = read_label(pair.label, table is not None)
            try:
                of_values = counted(values_of(label, pair.label))
            except UserError as error:  # which names the file
                raise LabelError(str(error)) from None
            headers[pair.image], counts[pair.label] = header, of_values
            are_plain &= table is None and label.pixels.ndim == 2
    _report(pairs, skip_bad)
    for split, of_split in [*pairs.splits.items()]:
        pairs.splits[split] = [pair for pair in of_split if pair.image in headers]
        if not pairs.splits[split]:
            del pairs.splits[split]
    if not counts:
        raise UserError(f'{pairs.images}: no image and its label can be used')
    pairs.hold_out()
    if table is None:
        classes = classes_of_numbers(counts, names, reduces_zero)
    else:
        classes = classes_of_colors(counts, table, names, colors)
    return Masks(pairs, classes, headers, common_bands(headers), counts, are_plain)


def _report(pairs: Pairs, skip_bad: bool) -> None:
    """Print the problems, or raise a UserError unless they are skipped."""
    problems = pairs.problems
    if skip_bad or len(problems) > 1:  # the error names a single one
        for problem in problems[:MAX_PRINTED]:
            print(problem)
        if len(problems) > MAX_PRINTED:
            print(f'... and {len(problems) - MAX_PRINTED} more')
    if problems and not skip_bad:
        raise UserError(
            f'{len(problems)} images or labels cannot be used, such as {problems[0]}; nothing was '
            'written: fix them, or leave them out with --skip-bad'
        )
    pairs.remarks['Problems; the images or labels are left out'] = len(problems)


def _start(masks: Masks, start: str | None, size: str | None) -> Start:
    """Return what the training starts from; a segmentor of RGB images has no other bands."""
    bands = 3 if masks.common is None else masks.common.bands
    if start is None and bands != 3:
        start = IMAGENET
    channels = 3
    if bands == 3 or start not in RELEASED:
        found = find_start(start, size, ADE20K)
        if found.load_from is None or found.in_channels == bands:
            return found
        channels = found.in_channels
    raise UserError(
        f'--start {start} has weights for {channels} bands, but the images have {bands}: use '
        f'--start {IMAGENET}, or convert the file with tools/convert_checkpoint.py --in-channels '
        f'{bands}, and pass it to --start'
    )


def _lists(masks: Masks) -> dict[str, bytes]:
    """Return the files that list the images of each split; those of scenes have suffixes."""
    lists = {}
    for split, of_split in masks.pairs.splits.items():
        names = [p.name + p.image.suffix if masks.are_scenes else p.name for p in of_split]
        lists[f'{split}.txt'] = ''.join(f'{name}\n' for name in names).encode()
    return lists


def _labels(masks: Masks) -> dict[str, bytes]:
    """Return the label images that are written, by their paths."""
    files, suffix = {}, _label_suffix(masks)
    as_colors = bool(masks.classes.palette)
    for pair in track(masks.all_pairs, 'Writing labels', console=Console(stderr=True)):
        values = values_of(read_label(pair.label, as_colors), pair.label)
        classes = masks.classes.of_label(values)
        encode = _as_tiff if suffix == '.tif' else _as_png
        files[f'{LABELS}/{pair.name}{suffix}'] = encode(classes, pair.label)
    return files


def _label_suffix(masks: Masks) -> str:
    """Return the suffix of label images: TIFF files are read by windows, and have a place."""
    if masks.stay:
        return masks.all_pairs[0].end
    have_places = any(p.label.suffix.lower() in ('.tif', '.tiff') for p in masks.all_pairs)
    return '.tif' if masks.are_scenes or have_places else '.png'


def _as_png(classes: np.ndarray, label: Path) -> bytes:
    file = io.BytesIO()
    Image.fromarray(classes).save(file, 'PNG')
    return file.getvalue()


def _as_tiff(classes: np.ndarray, label: Path) -> bytes:
    """Return a TIFF file at the place of the label image, if it is a TIFF file with a place."""
    from rasterio.io import MemoryFile

    place = {}
    if label.suffix.lower() in ('.tif', '.tiff'):
        with opened_tiff(label.read_bytes()) as (file, _):
            place = dict(crs=file.crs, transform=file.transform)
    height, width = classes.shape
    shape = dict(height=height, width=width, count=1, dtype='uint8')
    layout = dict(compress='deflate', tiled=True, blockxsize=256, blockysize=256)
    with warnings.catch_warnings(), MemoryFile() as memory:
        warnings.simplefilter('ignore')  # about images without a georeference
        with memory.open(driver=DRIVER, **shape, **layout, **place) as file:
            file.write(classes, 1)
        return memory.read()


def _measure(
    root: Path, masks: Masks, start: Start, balanced: bool, files: Mapping[str, bytes]
) -> tuple[Statistics, list[str]]:
    """Return the mean and the standard deviation of each band of the training images."""
    bands = masks.common.bands
    with unfinished_folder(root, 'statistics') as draft:
        config = draft / 'draft.py'
        text = _config(draft, masks, start, balanced, Statistics([0.0] * bands, [1.0] * bands))
        contents = {config: text.encode(), **{draft / name: data for name, data in files.items()}}
        write_files(draft, contents)
        cfg = load_config(config)
        adapt(cfg)
        measured = band_statistics(cfg, workers=1 if len(masks.headers) < FEW else None)
    std = [value or 1.0 for value in measured.std]  # of a band with a single value
    left_out = measured.left_out
    lines = (
        [f'{len(left_out)} images have no statistics, such as {left_out[0]}'] if left_out else []
    )
    return Statistics(measured.mean, std), lines


def _config(
    root: Path, masks: Masks, start: Start, balanced: bool, statistics_of_bands: Statistics | None
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
        balanced=balanced,
        load="dict(type='LoadImage')",
        bands='',
        distortion="    dict(type='PhotoMetricDistortion'),\n",
        statistics=f', {normalization(start)}' if start.normalization else '',
        label_suffix=literal(_label_suffix(masks)),
        image_suffix=literal(train[0].image.suffix),
        metric='mIoU',
    )
    if common is not None:
        options = f'channels={common.bands}' + (f', rgb={common.rgb}' if common.rgb else '')
        mean, std = (
            ', '.join(f'{value:.6g}' for value in values)
            for values in (statistics_of_bands.mean, statistics_of_bands.std)
        )
        fields |= dict(
            load=f"dict(type='LoadMultiband', {options})",
            bands=f', bands=dict({options})',
            distortion='',
            statistics=(
                ",\n        type='MultibandPreprocessor',\n        base='SegDataPreProcessor',\n"
                f'        mean=[{mean}],\n        std=[{std}],\n        bgr_to_rgb=False,\n    '
            ),
            backbone=f'dict({fields["backbone"]}, in_channels={common.bands})',
        )
    body = SCENES if masks.are_scenes else IMAGES
    return (HEAD + START + body + MODEL + SCHEDULE).format(**fields)


def _scale(sizes: Sequence[Size]) -> tuple[int, int, int]:
    """Return the side of crops, and the sides of the box that images are resized to fit into."""
    short = 32 * math.ceil(statistics.median(map(min, sizes)) / 32)
    if short > SHORT_SIDE:
        return SHORT_SIDE, LONG_SIDE, SHORT_SIDE
    return short, 32 * math.ceil(statistics.median(map(max, sizes)) / 32), short


def _summary(split: str, examples: Examples, classes: Sequence[str]) -> str:
    shares = examples.counts / max(1, examples.counts.sum())
    listed = ', '.join(f'{name} {share:.1%}' for name, share in zip(classes, shares, strict=True))
    return f'{split}.txt: {examples.number} image{"s" * (examples.number != 1)}: {listed}'
