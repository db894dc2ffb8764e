"""Check that the data is where a config says, and has its classes, before a model is built."""

import json
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS

from ..errors import UserError
from .annotations import read_annotations

CATEGORIES = b'"categories"'
CATEGORIES_SIZE = 2**20  # bytes, more than the list of categories takes
WHITESPACE = ' \t\r\n'  # of JSON
# Other heads may predict something else than the classes of the dataset: words, stuff, edges.
HEADS = ('Shared2FCBBoxHead', 'FCNMaskHead', 'RetinaHead', 'FPNHead', 'UPerHead', 'FCNHead')
# The metrics whose ``ann_file`` pycocotools reads.
COCO_METRICS = ('CocoMetric', 'CocoAPMetric')
FOLDER = 'folder'
GENERIC_HELP = "point to it with --cfg-options data_root=DIR or in the config's dataloaders"


def check_data(cfg: Config, splits: tuple[str, ...]) -> None:
    """Require every folder and annotation file of the dataloaders and evaluators of some splits.

    If the config has a ``data_help``, its ``text`` says how to get the data below its ``root``
    (which replaces ``{root}``).

    Raises:
        UserError: If a path is missing or of the wrong kind, with the path in full.
    """
    for split in splits:
        places = [
            *_dataset_paths((cfg.get(f'{split}_dataloader') or {}).get('dataset', {})),
            *_evaluator_paths(cfg.get(f'{split}_evaluator') or {}),
        ]
        for what, path in places:
            if not path.exists():
                known = cfg.get('data_help')
                is_known = isinstance(known, dict) and path.is_relative_to(known['root'])
                remedy = known['text'].format(root=known['root']) if is_known else GENERIC_HELP
                raise UserError(
                    f'{split} data: {what} {path} is missing (looked for at {path.absolute()}); '
                    f'{remedy}'
                )
            if not (path.is_dir() if what == FOLDER else path.is_file()):
                raise UserError(
                    f'{split} data: {path} is not the expected {what}: name the right one'
                )


def check_classes(cfg: Config, splits: tuple[str, ...]) -> None:
    """Compare the classes of the config with those of COCO's annotations and of the heads.

    mmdet silently drops the boxes of classes that the config does not name, and numbers the others
    in the order of the file. An evaluator reads annotations from a file of its own, which is
    compared with the dataset's. The datasets of mmdet or mmseg must be registered.

    Raises:
        UserError: If they differ, with the classes of both sides.
    """
    for split in splits:
        datasets = [*leaf_datasets((cfg.get(f'{split}_dataloader') or {}).get('dataset', {}))]
        for dataset in datasets:
            kind = _dataset_class(dataset.get('type'), cfg.default_scope)
            known = getattr(kind, 'METAINFO', {})
            classes = (dataset.get('metainfo') or {}).get('classes') or known.get('classes')
            if isinstance(classes, str):
                classes = _classes_of_file(classes, split)
            if classes is None or 'thing_classes' in known:  # panoptic: the heads share them
                continue
            if cfg.default_scope == 'mmdet' and _numbers_classes_as_coco(kind):
                ann_file = Path(dataset.get('data_root') or '', dataset['ann_file'])
                _compare_with_annotations(classes, ann_file, split)
                if len(datasets) == 1:
                    _check_evaluators(cfg.get(f'{split}_evaluator') or {}, dataset, classes, split)
            for head, num_classes in _heads(cfg.model):
                if num_classes != len(classes):
                    raise UserError(
                        f'{head}.num_classes={num_classes}, but the {split} dataset has '
                        f'{len(classes)} classes ({", ".join(classes)})'
                    )


def leaf_datasets(dataset: dict) -> Iterator[dict]:
    """Yield the datasets that read files, inside those that wrap or join other datasets."""
    inner = dataset.get('dataset') or dataset.get('datasets')
    if not inner:
        yield dataset
    for wrapped in [inner] if isinstance(inner, dict) else inner or []:
        yield from leaf_datasets(wrapped)


def _dataset_paths(dataset: dict) -> Iterator[tuple[str, Path]]:
    for leaf in leaf_datasets(dataset):
        root = leaf.get('data_root') or ''
        if root:
            yield FOLDER, Path(root)
        if leaf.get('ann_file'):
            yield 'annotation file', Path(root, leaf['ann_file'])
        prefixes = leaf.get('data_prefix') or {}
        for prefix in prefixes.values() if isinstance(prefixes, dict) else [prefixes]:
            if prefix:
                yield FOLDER, Path(root, prefix)


def _evaluator_paths(evaluator: dict | list) -> Iterator[tuple[str, Path]]:
    for metric in _metrics(evaluator):
        yield 'annotation file', Path(metric['ann_file'])


def _metrics(evaluator: dict | list) -> Iterator[dict]:
    """Yield the metrics that read an annotation file of their own."""
    for metric in [evaluator] if isinstance(evaluator, dict) else evaluator:
        if metric.get('ann_file'):
            yield metric


def _check_evaluators(
    evaluator: dict | list, dataset: dict, classes: Sequence[str], split: str
) -> None:
    """Require an annotation file of the same images that pycocotools can read."""
    of_dataset = Path(dataset.get('data_root') or '', dataset['ann_file'])
    for metric in _metrics(evaluator):
        if str(metric.get('type')).rpartition('.')[2] not in COCO_METRICS:
            continue
        path, with_masks = Path(metric['ann_file']), 'segm' in metric.get('metric', ())
        is_same = path.samefile(of_dataset)
        if is_same and (not with_masks or _loads_masks(dataset.get('pipeline'))):
            continue  # the dataset checks all of it
        if not is_same:
            contents = [read_annotations(file) for file in (path, of_dataset)]
            for what, ids in (('images', _image_ids), ('categories', _category_ids)):
                if len({ids(content) for content in contents}) > 1:
                    raise UserError(
                        f'{split}_evaluator: {path} has other {what} than {of_dataset}, the '
                        f'annotations of the {split} dataset: name the same file in both'
                    )
        from .coco import CheckedCocoDataset  # needs mmdet

        CheckedCocoDataset(
            ann_file=str(path),
            data_prefix=dict(img=''),
            metainfo=dict(classes=classes),
            pipeline=[dict(type='mmdet.LoadAnnotations', with_mask=with_masks)],
            test_mode=True,
        )


def _image_ids(content: dict) -> frozenset[int | str]:
    return frozenset(image['id'] for image in content['images'])


def _category_ids(content: dict) -> frozenset[tuple[str, int | str]]:
    return frozenset((category['name'], category['id']) for category in content['categories'])


def _loads_masks(node: Any) -> bool:
    """Return whether a transform of a pipeline, or one inside it, loads masks."""
    if isinstance(node, dict):
        return bool(node.get('with_mask')) or any(map(_loads_masks, node.values()))
    return isinstance(node, (list, tuple)) and any(map(_loads_masks, node))


def _classes_of_file(path: str, split: str) -> list[str]:
    """Read the classes where ``metainfo`` names a file with one class a line, as in mmengine."""
    if not Path(path).is_file():
        raise UserError(
            f'{split} data: classes={path!r} is neither a tuple of names, as in ({path!r},), nor a '
            'file with one name a line'
        )
    return Path(path).read_text().splitlines()


def _dataset_class(kind: str | type | None, scope: str) -> type | None:
    if not isinstance(kind, str):
        return kind
    with DATASETS.switch_scope_and_registry(scope) as registry:
        return registry.get(kind)


def _numbers_classes_as_coco(kind: type | None) -> bool:
    """Return whether mmdet's CocoDataset, and not a subclass, reads the annotations."""
    coco = DATASETS.get('mmdet.CocoDataset')
    return (
        None not in (coco, kind)
        and issubclass(kind, coco)
        and kind.load_data_list is coco.load_data_list
    )


def _compare_with_annotations(classes: Sequence[str], ann_file: Path, split: str) -> None:
    annotated = _annotated_classes(ann_file)
    if annotated != list(classes):
        other = ', in another order' if sorted(annotated) == sorted(classes) else ''
        raise UserError(
            f'{split} data: {ann_file} has the {len(annotated)} classes ({", ".join(annotated)}), '
            f'the config the {len(classes)} classes ({", ".join(classes)}){other}: set '
            f"metainfo=dict(classes=...) of the datasets to the file's, in its order, and "
            f'num_classes={len(annotated)} in the heads'
        )


def _annotated_classes(ann_file: Path) -> list[str]:
    """Read the names of the categories of a COCO file, if possible without the rest of it.

    Parsing all of COCO takes a quarter of a minute and gigabytes, and the dataset does it again.
    """
    try:
        with (
            ann_file.open('rb') as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
        ):
            start = text.rfind(CATEGORIES) + len(CATEGORIES)
            end = text[start : start + CATEGORIES_SIZE].decode(errors='replace')
        end = end.lstrip(WHITESPACE + ':')
        categories, length = json.JSONDecoder().raw_decode(end)
        if end[length:].strip(WHITESPACE) == '}':  # the end of the file, as in COCO's
            names = [category['name'] for category in categories]
            if all(isinstance(name, str) for name in names):
                return names
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass  # they are elsewhere in the file
    return [category['name'] for category in read_annotations(ann_file)['categories']]


def _heads(model: dict) -> Iterator[tuple[str, int]]:
    """Yield the heads that predict the classes of the dataset, with their number of classes."""
    roi_head = model.get('roi_head') or {}
    heads = {
        'model.bbox_head': model.get('bbox_head'),
        'model.decode_head': model.get('decode_head'),
        'model.auxiliary_head': model.get('auxiliary_head'),
        'model.roi_head.bbox_head': roi_head.get('bbox_head'),
        'model.roi_head.mask_head': roi_head.get('mask_head'),
    }
    for name, given in heads.items():
        for head in given if isinstance(given, (list, tuple)) else [given]:
            if head and head.get('type') in HEADS and 'num_classes' in head:
                yield name, head['num_classes']
