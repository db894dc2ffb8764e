"""Lists of images, label images where they are needed, and a config, for a folder of masks."""

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import track

from ...base.errors import UserError
from ...base.files import require_writable, unfinished_folder, write_files
from ...config.adapt import adapt
from ...config.load import load_config
from ...config.start import IMAGENET, RELEASED, Start, find_start
from ..audit.band_statistics import band_statistics
from ..audit.examples import Examples, missing_classes, refusal
from ..tiff.tiff_bands import DRIVER, opened_tiff
from .base import SPLITS, absolute
from .color_table import read_colors
from .config_text import config_path, print_next
from .label_values import read_label, values_of
from .mask_config import LABELS, Statistics, config_of_masks, label_suffix
from .mask_pairs import find_pairs
from .read_masks import Masks, read_masks

ADE20K = 'ade20k'
FEW = 16  # images that one process reads alone


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
    masks = read_masks(pairs, table, colors, names, reduces_zero, skip_bad)
    found = _start(masks, start, size)
    require_writable(root)
    examples = masks.examples
    if why := refusal('train', examples['train'], masks.classes.names):
        raise UserError(f'{pairs.labels}: {why}; nothing was written')
    files = _lists(masks) | ({} if masks.stay else _labels(masks))
    lines = [_summary(split, e, masks.classes.names) for split, e in examples.items()]
    statistics_of_bands = None
    if masks.common is not None:
        statistics_of_bands, remarks = _measure(root, masks, found, files)
        lines += remarks
    config = config_path(root)
    text = config_of_masks(root, masks, found, statistics_of_bands)
    lines += missing_classes(examples, masks.classes.names)
    lines += [f'{remark}: {count}' for remark, count in pairs.remarks.items() if count]
    lines += filter(None, [masks.classes.remark])
    contents = {config: text.encode(), **{root / name: data for name, data in files.items()}}
    earlier = [root / f'{split}.txt' for split in SPLITS]
    if not pairs.labels.is_relative_to(absolute(root / LABELS)):
        earlier += filter(Path.is_file, (root / LABELS).rglob('*'))
    print_next([*lines, write_files(root, contents, earlier)], config)


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
    files, suffix = {}, label_suffix(masks)
    as_colors = bool(masks.classes.palette)
    for pair in track(masks.all_pairs, 'Writing labels', console=Console(stderr=True)):
        values = values_of(read_label(pair.label, as_colors), pair.label)
        classes = masks.classes.of_label(values)
        encode = _as_tiff if suffix == '.tif' else _as_png
        files[f'{LABELS}/{pair.name}{suffix}'] = encode(classes, pair.label)
    return files


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
    root: Path, masks: Masks, start: Start, files: Mapping[str, bytes]
) -> tuple[Statistics, list[str]]:
    """Return the mean and the standard deviation of each band of the training images."""
    bands = masks.common.bands
    with unfinished_folder(root, 'statistics') as draft:
        config = draft / 'draft.py'
        text = config_of_masks(draft, masks, start, Statistics([0.0] * bands, [1.0] * bands))
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


def _summary(split: str, examples: Examples, classes: Sequence[str]) -> str:
    shares = examples.counts / max(1, examples.counts.sum())
    listed = ', '.join(f'{name} {share:.1%}' for name, share in zip(classes, shares, strict=True))
    return f'{split}.txt: {examples.number} image{"s" * (examples.number != 1)}: {listed}'
