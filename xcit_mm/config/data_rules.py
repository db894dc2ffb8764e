"""The rules about data: it exists where a config says, and fits the heads. Nothing is built."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ..base.environment import require_framework
from ..base.errors import UserError
from ..base.finder import IMAGE_SUFFIXES, LeftOut, find_files, in_order
from .tree import (
    class_name,
    dataset_class,
    default_of,
    dicts,
    loads_masks,
    registered_class,
    split_datasets,
)

# Other heads may predict something else than the classes of the dataset: words, stuff, edges.
HEADS = (
    *('Shared2FCBBoxHead', 'ConvFCBBoxHead', 'FCNMaskHead', 'RetinaHead', 'RTMDetSepBNHead'),
    *('DeformableDETRHead', 'DINOHead', 'Mask2FormerHead', 'FPNHead', 'UPerHead', 'FCNHead'),
    'ImageXCiT',
)
CLASSES, THINGS, STUFF = 'num_classes', 'num_things_classes', 'num_stuff_classes'  # of a head
# The datasets that check their annotation file, and the metrics that read the same file.
COCO_DATASET = 'CheckedCocoDataset'
METRICS_OF = {
    COCO_DATASET: ('CocoMetric', 'CocoAPMetric'),
    'CheckedPanopticDataset': ('PanopticQualityMetric',),
    'Scenes': ('CocoMetric', 'CocoAPMetric'),
}
GEOJSON_DATASET, SCENES = 'GeoJSONDataset', 'Scenes'
FOLDERS = 'SegmentationFolders'
FOLDER, ANNOTATIONS = 'folder', 'annotation file'
GENERIC_HELP = "point to it with --cfg-options data_root=DIR or in the config's dataloaders"


def check_data(cfg: Config, splits: tuple[str, ...]) -> list[str]:
    """Require the data of the dataloaders, and evaluators that read what their dataset checks.

    Returns sentences on the images that mmseg will not read.

    If the config has a ``data_help``, its ``text`` says how to get the data below its ``root``
    (which replaces ``{root}``).
    """
    remarks = []
    for split in splits:
        datasets = split_datasets(cfg, split)
        evaluators = cfg.get(f'{split}_evaluator') or []
        metrics = [evaluators] if isinstance(evaluators, dict) else evaluators
        metrics = [metric for metric in metrics if metric.get('ann_file')]
        for dataset in datasets:
            kind = class_name(dataset.get('type'))
            if kind == GEOJSON_DATASET or (kind == SCENES and not dataset.get('ann_file')):
                _refuse_annotation_files(dataset, metrics, split)
        paths = [entry for dataset in datasets for entry in _paths(dataset)]
        paths += [(ANNOTATIONS, Path(metric['ann_file'])) for metric in metrics]
        for kind, path in paths:
            _require_path(cfg, split, kind, path)
        for dataset in datasets:
            remarks += _require_images(cfg, split, dataset)
        if len(datasets) == 1:
            checked = METRICS_OF.get(class_name(datasets[0].get('type')), ())
            for metric in metrics:
                if class_name(metric.get('type')) in checked:
                    _check_evaluator(metric, datasets[0], split)
    return remarks


def check_classes(cfg: Config, splits: tuple[str, ...]) -> None:
    """Compare the numbers of classes of the heads with the classes of the registered datasets.

    A ``CheckedCocoDataset`` itself compares its classes with the classes of its annotation file.
    """
    for split in splits:
        for dataset in split_datasets(cfg, split):
            kind = dataset_class(dataset, cfg.default_scope)
            own = dataset.get('metainfo') or {}
            if not isinstance(own, dict):
                raise UserError(
                    f'{split} data: metainfo={own!r} is not a dict, such as '
                    "dict(classes=('cat', 'dog'))"
                )
            info = {**getattr(kind, 'METAINFO', {}), **own}
            classes = _class_names(info.get('classes'), split)
            if 'BaseSegDataset' in _bases(kind):
                _check_as_mmseg(kind, own, classes, split)
            if classes is None:
                continue
            if 'thing_classes' in info:  # the heads of a panoptic model share the classes
                counted = {THINGS: info['thing_classes'], STUFF: info['stuff_classes']}
            else:
                counted = {CLASSES: classes, THINGS: classes, STUFF: ()}
                if _is_unchecked_coco(kind):
                    _check_as_coco(dataset, classes, is_test=split != 'train')
            _check_heads(cfg.model, counted, split)


def _require_path(cfg: Config, split: str, kind: str, path: Path) -> None:
    is_there = path.is_dir() if kind == FOLDER else path.is_file()
    if is_there:
        return
    known = cfg.get('data_help')
    is_known = isinstance(known, dict) and path.is_relative_to(known['root'])
    remedy = known['text'].format(root=known['root']) if is_known else GENERIC_HELP
    problem = f'is not the expected {kind}' if path.exists() else 'is missing'
    raise UserError(
        f'{split} data: {kind} {path} {problem} (looked for at {path.absolute()}); {remedy}'
    )


def _require_images(cfg: Config, split: str, dataset: dict) -> list[str]:
    """Require an image in a folder that mmseg lists, because mmseg does not explain an empty list.

    Returns a sentence if the folder has images with other suffixes.
    """
    kind = dataset_class(dataset, cfg.default_scope)
    prefix = (dataset.get('data_prefix') or {}).get('img_path')
    is_listed = prefix and not dataset.get('ann_file')
    if 'BaseSegDataset' not in _bases(kind) or not is_listed:
        return []
    suffix = dataset.get('img_suffix') or default_of(kind, 'img_suffix')
    folder = Path(dataset.get('data_root') or '', prefix)
    labels = dataset['data_prefix'].get('seg_map_path') or 'labels'
    ending = dataset.get('seg_map_suffix') or default_of(kind, 'seg_map_suffix')
    labels, left = Path(dataset.get('data_root') or '', labels), LeftOut()
    label_files = {*find_files(labels, [ending])} if labels.is_dir() else set()
    files = [path for path in find_files(folder, [''], left) if path not in label_files]
    if not isinstance(suffix, str):  # SegmentationFolders reports what it leaves out
        if any(path.name.lower().endswith(tuple(suffix)) for path in files):
            return []
        suffix = ', '.join(suffix)
    read = {path.relative_to(folder).as_posix() for path in files if path.name.endswith(suffix)}
    others = Counter(path.suffix for path in files if not path.name.endswith(suffix))
    if read:
        names = (path.relative_to(labels).as_posix() for path in label_files)
        unused = sum(name.removesuffix(ending) + suffix not in read for name in names)
        images = Counter({s: n for s, n in others.items() if s.lower() in IMAGE_SUFFIXES})
        hidden = [path for path in left.hidden if path.is_dir() and any(path.rglob(f'*{suffix}'))]
        parts = [f'does not read {images.total()} other images ({in_order(images)})'] * bool(images)
        parts += [f'does not read {unused} label files in {labels}'] * bool(unused)
        parts += [f'reads the images in the hidden folder {path}' for path in hidden]
        said = f'{split} data: mmseg reads the images *{suffix} (img_suffix) in {folder}'
        remedy = f'type={FOLDERS!r} reads images of all suffixes, without hidden ones'
        return [f'{said}; it {", and ".join(parts)}; {remedy}'] if parts else []
    found = f', but {others.most_common(1)[0][0]}' if others else ''
    raise UserError(
        f'{split} data: {folder} has no images *{suffix}{found}: set img_suffix of the dataset, '
        'and seg_map_suffix for its labels'
    )


def _bases(kind: type | None) -> list[str]:
    """Return the names of a class and its bases; importing mmseg to compare them takes seconds."""
    return [base.__name__ for base in getattr(kind, '__mro__', ())]


def _check_as_mmseg(kind: type, own: Mapping, classes: Sequence[str] | None, split: str) -> None:
    """Refuse classes and palettes with which mmseg cannot build a dataset."""
    if not classes:
        raise UserError(
            f'{split} data: the dataset has no classes: write '
            "metainfo=dict(classes=('background', 'road')) with your classes"
        )
    of_kind = kind.METAINFO.get('classes') or classes
    if unknown := [name for name in classes if name not in of_kind]:
        raise UserError(
            f'{split} data: {unknown[0]} is not one of the {len(of_kind)} classes of '
            f"{kind.__name__}: write type='BaseSegDataset' for classes of your own"
        )
    palette = own.get('palette', kind.METAINFO.get('palette')) or ()
    if palette and len(palette) not in (len(classes), len(of_kind)):
        raise UserError(
            f'{split} data: metainfo.palette has {len(palette)} colors for {len(classes)} classes '
            f'({", ".join(classes)}): write one for each, or palette=[] to have them chosen'
        )


def _paths(dataset: dict) -> Iterator[tuple[str, Path]]:
    root = dataset.get('data_root') or ''
    if root:
        yield FOLDER, Path(root)
    if dataset.get('ann_file'):
        yield ANNOTATIONS, Path(root, dataset['ann_file'])
    for prefix in filter(None, (dataset.get('data_prefix') or {}).values()):
        yield FOLDER, Path(root, prefix)


def _refuse_annotation_files(dataset: dict, metrics: Sequence[dict], split: str) -> None:
    """Refuse annotation files for GeoJSON datasets, because the two would never be compared."""
    if dataset.get('ann_file'):
        raise UserError(
            f'{split} data: ann_file={dataset.ann_file}, but a {GEOJSON_DATASET} reads the files '
            'in data_prefix.objects: remove ann_file, and replace the dataset of the base config '
            'with _delete_=True'
        )
    for metric in metrics:
        raise UserError(
            f'{split}_evaluator: ann_file={metric["ann_file"]}, but the objects of the {split} '
            'dataset are in its own files: write ann_file=None'
        )


def _check_evaluator(metric: dict, dataset: dict, split: str) -> None:
    ann_file = Path(dataset.get('data_root') or '', dataset.get('ann_file', ''))
    if not ann_file.samefile(metric['ann_file']):
        raise UserError(
            f'{split}_evaluator: ann_file={metric["ann_file"]} is not the annotation file of the '
            f'{split} dataset, {ann_file}: name the same file in both'
        )
    if 'segm' in metric.get('metric', ()) and not loads_masks(dataset.get('pipeline')):
        raise UserError(
            f'{split}_evaluator: metric={metric["metric"]} needs masks, but the pipeline of the '
            f"{split} dataset does not load them: add dict(type='LoadAnnotations', "
            'with_bbox=True, with_mask=True)'
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
    for place, node in dicts(model, 'model'):
        if 'rpn_head' in place.split('.'):  # an RPN has one class
            continue
        for name, names in counted.items():
            is_known = name != CLASSES or node.get('type') in HEADS
            if is_known and node.get(name, len(names)) != len(names):
                raise UserError(
                    f'{place}.{name}={node[name]}, but the {split} dataset has {len(names)} '
                    f'classes ({", ".join(names)}): set {name}={len(names)} there'
                )


def _is_unchecked_coco(kind: type | None) -> bool:
    """Return whether a class reads annotations as mmdet's CocoDataset does, without checks."""
    bases = getattr(kind, '__mro__', ())  # by name: to import mmdet for mmseg takes seconds
    coco = next((base for base in bases if base.__name__ == 'CocoDataset'), None)
    if coco is None or kind.__name__ == COCO_DATASET:
        return False
    return kind.load_data_list is coco.load_data_list


def _check_as_coco(dataset: dict, classes: Sequence[str], is_test: bool) -> None:
    require_framework('mmdet')  # which the config of a segmentor does not import
    checked = registered_class(COCO_DATASET, 'mmdet')(
        data_root=dataset.get('data_root'),
        ann_file=dataset.get('ann_file', ''),
        data_prefix=dict(img=''),
        metainfo=dict(classes=tuple(classes)),
        pipeline=[dict(type='mmdet.LoadAnnotations', with_mask=loads_masks(dataset['pipeline']))],
        test_mode=is_test,
    )
    if checked.remark:
        raise UserError(
            f"{checked.remark}, which {dataset['type']} does not do: use type='{COCO_DATASET}', or "
            'correct the file'
        )
