"""The checks of a config before a run: the mistakes that are made most often.

Nothing is built and nothing is edited. All other mistakes are errors of the package that builds the
part (:func:`~.build_model.config_errors`).
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.utils import is_seq_of

from ..base.environment import require, require_framework
from ..base.errors import UserError
from ..base.launchers import LAUNCHERS
from ..base.run_files import require_checkpoints
from ..network.archs import ARCHS
from ..network.weights.pretrained import require_file
from ..network.xcit import NUM_LEVELS, XCiT
from .adapt import LOGGERS
from .draft import check_draft
from .streaming import is_streamed
from .tree import (
    arguments_of,
    class_name,
    dataset_class,
    default_of,
    dicts,
    split_datasets,
    typed_nodes,
)

REQUIRED = {
    'train': ('default_scope', 'model', 'train_dataloader', 'train_cfg', 'optim_wrapper'),
    'test': ('default_scope', 'model', 'test_dataloader', 'test_cfg', 'test_evaluator'),
    'prediction': ('default_scope', 'model', 'test_dataloader'),
}
SPLITS = {'train': ('train', 'val'), 'test': ('test',)}
# Other heads may predict something else than the classes of the dataset: words, stuff, edges.
HEADS = (
    *('Shared2FCBBoxHead', 'ConvFCBBoxHead', 'FCNMaskHead', 'RetinaHead', 'RTMDetSepBNHead'),
    *('DeformableDETRHead', 'DINOHead', 'Mask2FormerHead', 'FPNHead', 'UPerHead', 'FCNHead'),
    'ImageXCiT',
)
CLASSES, THINGS, STUFF = 'num_classes', 'num_things_classes', 'num_stuff_classes'  # of a head
# For each dataset, the metrics that read the same annotation file.
METRICS_OF = {
    'CheckedCocoDataset': ('CocoMetric', 'CocoAPMetric'),
    'CheckedPanopticDataset': ('PanopticQualityMetric',),
    'Scenes': ('CocoMetric', 'CocoAPMetric'),
}
FOLDER, ANNOTATIONS = 'folder', 'annotation file'
GENERIC_HELP = "point to it with --cfg-options data_root=DIR or in the config's dataloaders"


def check(cfg: Config, task: str) -> None:
    """Check what a run ('train' or 'test') needs, from the quickest check to the slowest."""
    require_parts(cfg, task)
    _require_launcher(cfg.launcher)
    check_backbone(cfg)
    _check_stream(cfg, SPLITS[task])
    check_draft(cfg)
    _check_layer_decay(cfg.get('optim_wrapper') or {})
    for name in LOGGERS.keys() & cfg.default_hooks.keys():
        require(name)
    if cfg.get('resume') and not cfg.get('load_from'):
        require_checkpoints(cfg.work_dir)
    require_framework(cfg.default_scope)  # before the classes of datasets are looked up
    check_data(cfg, SPLITS[task])
    check_classes(cfg, SPLITS[task])
    if cfg.get('load_from'):
        require_file(cfg.load_from, trusted=cfg.get('trust_checkpoint', False))


def _check_layer_decay(wrapper: Mapping[str, Any]) -> None:
    """Refuse a decay of layers without its constructor, because mmengine's own ignores it."""
    decay = (wrapper.get('paramwise_cfg') or {}).get('layer_decay')
    if decay is not None and class_name(wrapper.get('constructor')) != 'LayerDecayConstructor':
        raise UserError(
            f'optim_wrapper.paramwise_cfg.layer_decay={decay!r} needs '
            'optim_wrapper.constructor=LayerDecayConstructor'
        )


def require_parts(cfg: Config, task: str) -> None:
    """Refuse a config that is only a part of one, such as a file of ``configs/_base_``."""
    for part in REQUIRED[task]:
        if cfg.get(part) is None:
            raise UserError(f'the config {cfg.filename} has no {part}, which a {task} run needs')


def check_backbone(cfg: Config) -> None:
    """Refuse what an XCiT inherits from the backbone of a base config, and other channels."""
    backbone = cfg.model.get('backbone') or {}
    if class_name(backbone.get('type')) != 'XCiT':
        return
    inherited = [name for name in backbone if name not in arguments_of(XCiT) | {'type', '_scope_'}]
    place = f'the config {cfg.filename}: model'
    if len(inherited) > 1:  # a single one may be misspelled, which the error of its part says
        raise UserError(
            f'{place}.backbone: XCiT has no {", ".join(inherited)}, which the base config sets: '
            "replace the whole backbone with backbone=dict(_delete_=True, type='XCiT', ...)"
        )
    if weights := cfg.model.get('pretrained'):
        raise UserError(
            f'{place}.pretrained={weights!r} is for the backbone of the base config: write '
            'pretrained=None, and init_cfg of the backbone for weights of XCiT'
        )
    _check_channels(cfg, backbone)


def _check_channels(cfg: Config, backbone: Mapping[str, Any]) -> None:
    """Refuse a neck or a head with other input channels than the backbone's maps have."""
    arch = backbone.get('arch', 's12')
    if not isinstance(arch, str) or arch not in ARCHS:
        return  # the backbone itself refuses an invalid arch
    dim, number = ARCHS[arch].embed_dim, NUM_LEVELS - backbone.get('start_level', 0)
    heads = 'decode_head', 'auxiliary_head', 'panoptic_head'
    for name in ('neck',) if cfg.model.get('neck') else heads:
        part = cfg.model.get(name)
        channels = part.get('in_channels') if isinstance(part, dict) else None
        fitting = dim
        if is_seq_of(channels, int):
            fitting = type(channels)([dim] * (number if name == 'neck' else len(channels)))
        if channels is not None and channels != fitting:
            raise UserError(
                f'model.{name}.in_channels={channels}: XCiT {arch} returns {number} maps with '
                f'{dim} channels; write in_channels={fitting}'
            )


def check_data(cfg: Config, splits: Sequence[str]) -> None:
    """Require the files of the dataloaders and evaluators.

    If the config has a ``data_help``, its ``text`` says how to get the data below its ``root``
    (which replaces ``{root}``).
    """
    for split in splits:
        datasets = split_datasets(cfg, split)
        evaluators = cfg.get(f'{split}_evaluator') or []
        metrics = [evaluators] if isinstance(evaluators, dict) else evaluators
        metrics = [metric for metric in metrics if metric.get('ann_file')]
        paths = [entry for dataset in datasets for entry in _paths(dataset)]
        paths += [(ANNOTATIONS, Path(metric['ann_file'])) for metric in metrics]
        for kind, path in paths:
            _require_path(cfg, split, kind, path)
        for dataset in datasets:
            _require_images(cfg, split, dataset)
        if len(datasets) == 1:
            _check_evaluators(metrics, datasets[0], split)


def check_classes(cfg: Config, splits: Sequence[str]) -> None:
    """Compare the numbers of classes of the heads with the classes of the registered datasets.

    A ``CheckedCocoDataset`` itself compares its classes with the classes of its annotation file.
    """
    for split in splits:
        for dataset in split_datasets(cfg, split):
            kind = dataset_class(dataset, cfg.default_scope)
            info = {**getattr(kind, 'METAINFO', {}), **(dataset.get('metainfo') or {})}
            classes = _class_names(info.get('classes'), split)
            if classes is None:
                continue
            counted = {CLASSES: classes, THINGS: classes, STUFF: ()}
            if 'thing_classes' in info:  # the heads of a panoptic model share the classes
                counted = {THINGS: info['thing_classes'], STUFF: info['stuff_classes']}
            _check_heads(cfg.model, counted, split)


def _require_launcher(launcher: str) -> None:
    variable, _, command = LAUNCHERS.get(launcher, (None, '', ''))
    if variable is not None and variable not in os.environ:
        raise UserError(f'--launcher {launcher}: no process group; start it with {command}')


def _check_stream(cfg: Config, splits: Sequence[str]) -> None:
    """Refuse images that are opened but not streamed, or the reverse, and batches of them."""
    for split in splits:
        place, loader = f'{split}_dataloader', cfg.get(f'{split}_dataloader') or {}
        opened = any(class_name(part['type']) == 'OpenImage' for _, part in typed_nodes(loader))
        streamed = is_streamed(cfg, split)
        if loader and streamed and not opened:
            raise UserError(
                f'{place}: stream computes whole images, which OpenImage reads by windows: write '
                'a pipeline from OpenImage to PackScene, or stream=None; stream=dict(train=False, '
                '...) trains on images that are loaded'
            )
        if opened and not streamed:
            raise UserError(
                f'{place}: OpenImage opens images that are read by windows: add '
                "stream=dict(memory='2GiB', train=True), or load the images with LoadImage"
            )
        if streamed and loader.get('batch_size', 1) != 1:
            raise UserError(
                f'{place}.batch_size={loader.batch_size}: whole images are streamed one at a time: '
                'write batch_size=1; optim_wrapper.accumulative_counts adds up the gradients of '
                'several images'
            )


def _paths(dataset: dict) -> Iterator[tuple[str, Path]]:
    root = dataset.get('data_root') or ''
    if root:
        yield FOLDER, Path(root)
    if dataset.get('ann_file'):
        yield ANNOTATIONS, Path(root, dataset['ann_file'])
    for prefix in filter(None, (dataset.get('data_prefix') or {}).values()):
        yield FOLDER, Path(root, prefix)


def _require_path(cfg: Config, split: str, kind: str, path: Path) -> None:
    if path.is_dir() if kind == FOLDER else path.is_file():
        return
    help_of_config = cfg.get('data_help')
    remedy = GENERIC_HELP
    if isinstance(help_of_config, dict) and path.is_relative_to(help_of_config['root']):
        remedy = help_of_config['text'].format(root=help_of_config['root'])
    problem = f'is not the expected {kind}' if path.exists() else 'is missing'
    raise UserError(
        f'{split} data: {kind} {path} {problem} (looked for at {path.absolute()}); {remedy}'
    )


def _require_images(cfg: Config, split: str, dataset: dict) -> None:
    """Require an image in a folder that mmseg lists, because mmseg does not explain an empty list.

    :class:`SegmentationFolders`, which reads all suffixes, does.
    """
    prefix = (dataset.get('data_prefix') or {}).get('img_path')
    kind = dataset_class(dataset, cfg.default_scope)
    # By name: importing mmseg to compare the classes takes seconds.
    is_of_mmseg = 'BaseSegDataset' in [base.__name__ for base in getattr(kind, '__mro__', ())]
    if not is_of_mmseg or not prefix or dataset.get('ann_file'):
        return
    suffix = dataset.get('img_suffix') or default_of(kind, 'img_suffix')
    folder = Path(dataset.get('data_root') or '', prefix)
    if isinstance(suffix, str) and not any(folder.rglob(f'*{suffix}')):
        raise UserError(
            f'{split} data: {folder} has no images *{suffix}: set img_suffix of the dataset, and '
            "seg_map_suffix for its labels, or use type='SegmentationFolders'"
        )


def _check_evaluators(metrics: Sequence[dict], dataset: dict, split: str) -> None:
    """Refuse metrics that would compare the predictions with another annotation file."""
    ann_file = Path(dataset.get('data_root') or '', dataset.get('ann_file') or '')
    same = METRICS_OF.get(class_name(dataset.get('type')), ())
    for metric in metrics:
        is_same = class_name(metric.get('type')) in same
        if is_same and not ann_file.samefile(metric['ann_file']):
            raise UserError(
                f'{split}_evaluator: ann_file={metric["ann_file"]} is not the annotation file of '
                f'the {split} dataset, {ann_file}: name the same file in both'
            )


def _class_names(classes: Any, split: str) -> Sequence[str] | None:
    """Return the names of classes; mmengine reads a text as a file with one name per line."""
    if not isinstance(classes, str):
        return classes
    if not Path(classes).is_file():
        raise UserError(
            f'{split} data: classes={classes!r} is neither a tuple of names, as in ({classes!r},), '
            'nor a file with one name per line'
        )
    return Path(classes).read_text(encoding='utf-8').splitlines()


def _check_heads(model: dict, counted: Mapping[str, Sequence[str]], split: str) -> None:
    """Compare the numbers of classes in a model with the classes that each counts."""
    for place, part in dicts(model, 'model'):
        if 'rpn_head' in place.split('.'):  # an RPN has one class
            continue
        for name, names in counted.items():
            is_compared = name != CLASSES or part.get('type') in HEADS
            if is_compared and part.get(name, len(names)) != len(names):
                raise UserError(
                    f'{place}.{name}={part[name]}, but the {split} dataset has {len(names)} '
                    f'classes ({", ".join(names)}): set {name}={len(names)} there'
                )
