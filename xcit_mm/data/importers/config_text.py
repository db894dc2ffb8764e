"""The parts that all written configs have: where the data is, the weights, and the schedule."""

import math
import os
import re
import shlex
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from pprint import pformat
from typing import Any

from ...base.errors import printable
from ...base.shipped import CONFIGS, IN_CLONE, ROOT, commands
from ...config.load import load_config
from ...config.own_schedule import schedule
from ...config.start import Start
from .base import absolute

MAX_SCALE = 640  # pixels
# What papers call the models.
NAMES = {
    'AlignedEncoderDecoder': 'Semantic FPN',
    'FasterRCNN': 'Faster R-CNN',
    'MaskRCNN': 'Mask R-CNN',
}
# The first lines, to be formatted with ``head_fields`` and the base.
HEAD = '''\
"""Written by tools/prepare_data.py together with its labels. Edit it as you like."""

_base_ = {base}

folder = "{{{{ fileDirname }}}}/"  # the folder of this file and of what was written with it
data_root = {data_root}  # the folder of the images
data_help = dict(root=data_root, text='the images have moved: --cfg-options data_root=DIR')
classes = {classes}
max_iters = {max_iters}  # updates with {images_per_step} images each
'''
SCALE = """\
scale = ({scale}, {scale})  # pixels: images are resized to fit into it
"""
# The last lines, to be formatted with ``schedule_fields`` and the metric of the best checkpoint.
SCHEDULE = """\
interval = max(1, max_iters // {validations})  # of validations and checkpoints
train_cfg = dict(max_iters=max_iters, val_interval=interval)
warm_up, decay = _base_.param_scheduler
param_scheduler = [
    dict(warm_up, end=max_iters // 20),
    dict(decay, begin=max_iters // 20, end=max_iters),
]
optim_wrapper = dict(optimizer=dict(lr={lr}){rates})
auto_scale_lr = dict(base_batch_size={images_per_step})
default_hooks = dict(checkpoint=dict(interval=interval, save_best='{metric}'){stopping})
"""


def config_path(root: Path) -> Path:
    """Return the path of the config that is written to a folder, and that is named after it."""
    return root / f'{re.sub(r"[^0-9A-Za-z_]", "_", absolute(root).name) or "dataset"}.py'


def head_fields(base: str, data: Path, root: Path, classes: Sequence[str]) -> dict[str, str]:
    """Return the fields of :data:`HEAD` but for those of the schedule.

    The configs of a clone are named relative to ``root`` if it is in the clone as well.
    """
    path = CONFIGS / f'{base}.py'
    if IN_CLONE and absolute(root).is_relative_to(ROOT):
        path = Path(os.path.relpath(path, absolute(root)))
    return dict(
        base=literal(path.as_posix()),
        data_root=relative(data, root, is_folder=True),
        classes=literal(tuple(classes)),
    )


def scale_of(sizes: Sequence[tuple[int, int]]) -> int:
    """Return the pixels of the longer side that images of these sizes are resized to."""
    return min(MAX_SCALE, 32 * math.ceil(statistics.median(map(max, sizes)) / 32))


def start_fields(start: Start, root: Path, num_images: int, base: str) -> dict[str, Any]:
    """Return the fields of the model, its weights and the schedule.

    From random weights, all layers have the same rate, and the run does not stop early, as its
    first validations often find nothing.
    """
    restarts = start.is_scratch and base.startswith('fine_tune')
    backbone = start.backbone(num_images)
    weights = 'None'
    if start.pretrained is not None:
        weights = f"dict(type='Pretrained', checkpoint={_weights(start.pretrained, root)})"
    fields = [f'{name}={literal(value)}' for name, value in backbone.items()]
    return dict(
        schedule(start, num_images),
        backbone=f'dict({", ".join([*fields, f"init_cfg={weights}"])})',
        channels=start.channels,
        load_from=_weights(start.load_from, root),
        rates=', paramwise_cfg=dict(layer_decay=1.0)' if restarts else '',
        stopping=', stopping=None' if restarts else '',
        normalization=(
            f'    data_preprocessor=dict({normalization(start)}),\n' if start.normalization else ''
        ),
    )


def normalization(start: Start) -> str:
    """Return the mean and the standard deviation that the weights were trained with."""
    return ', '.join(f'{name}={list(value)}' for name, value in start.normalization.items())


def summary(config: Path) -> str:
    """Return a sentence on the model, the weights and the schedule of a written config."""
    cfg = load_config(config)
    backbone = cfg.model.backbone
    pretrained = (backbone.get('init_cfg') or {}).get('checkpoint')
    model = NAMES.get(cfg.model.type, cfg.model.type)
    name = f'{model} with XCiT-{backbone.arch.upper()}/{backbone.patch_size}'
    sizes = 'max_iters=N' if 'scale' not in cfg else 'max_iters=N scale=PIXELS'
    longest = '' if 'scale' not in cfg else f', resized to {max(cfg.scale)} pixels'
    return (
        f'{name}, from {cfg.get("load_from") or pretrained or "random weights"}: '
        f'{cfg.max_iters} updates with {cfg.auto_scale_lr.base_batch_size} images each{longest} '
        f'(--cfg-options {sizes} changes this)'
    )


def print_next(lines: Iterable[str], config: Path) -> None:
    """Print what was written, the model of the config, and the commands that come next."""
    for line in lines:
        print(printable(commands(line)))
    print(printable(summary(config)), 'Read every image, then train:', sep='\n')
    for tool in ('check_dataset', 'train'):
        print(printable(commands(f'    tools/{tool}.py {shlex.quote(str(config))}')))


def literal(value: object) -> str:
    """Return a Python literal without braces, which mmengine replaces in configs."""
    return pformat(value, width=90, compact=True).replace('{', r'\x7b')


def relative(path: Path, root: Path, is_folder: bool = False) -> str:
    """Return the expression of a path in a config of the folder ``root``: relative to it."""
    way = Path(os.path.relpath(absolute(path), absolute(root))).as_posix()
    if way == '.':
        return 'folder'
    return f'folder + {literal(way + "/" * is_folder)}'


def _weights(name: str | None, root: Path) -> str:
    is_file = name is not None and '://' not in name
    return relative(Path(name), root) if is_file else literal(name)
