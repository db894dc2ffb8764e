"""Is the data where the config says? Asked before any model is built."""

from collections.abc import Iterator
from pathlib import Path

from mmengine.config import Config

from ..errors import UserError

GENERIC_HELP = "point to it with --cfg-options data_root=DIR or in the config's dataloaders"


def check_data(cfg: Config, splits: tuple[str, ...]) -> None:
    """Look for every folder and annotation file of the dataloaders and evaluators.

    Args:
        cfg: The config; its ``data_help`` says how to get the data (``{data_root}`` is filled in).
        splits: Which to look at, of 'train', 'val' and 'test'.

    Raises:
        UserError: If something is missing, with its path as given and in full.
    """
    for split in splits:
        places = [
            *_dataset_paths((cfg.get(f'{split}_dataloader') or {}).get('dataset', {})),
            *_evaluator_paths(cfg.get(f'{split}_evaluator') or {}),
        ]
        for what, path in places:
            if not path.exists():
                raise UserError(
                    f'{split} data: {what} {path} is missing (looked for at {path.absolute()}); '
                    + cfg.get('data_help', GENERIC_HELP).format(data_root=cfg.get('data_root'))
                )


def _dataset_paths(dataset: dict) -> Iterator[tuple[str, Path]]:
    """What a dataset reads, from the outside in; also of wrapped and joined datasets."""
    inner = dataset.get('dataset') or dataset.get('datasets') or []
    for wrapped in [inner] if isinstance(inner, dict) else inner:
        yield from _dataset_paths(wrapped)
    root = dataset.get('data_root') or ''
    if root:
        yield 'folder', Path(root)
    if dataset.get('ann_file'):
        yield 'annotation file', Path(root, dataset['ann_file'])
    prefixes = dataset.get('data_prefix') or {}
    for prefix in prefixes.values() if isinstance(prefixes, dict) else [prefixes]:
        if prefix:
            yield 'folder', Path(root, prefix)


def _evaluator_paths(evaluator: dict | list) -> Iterator[tuple[str, Path]]:
    for metric in [evaluator] if isinstance(evaluator, dict) else evaluator:
        if metric.get('ann_file'):
            yield 'annotation file', Path(metric['ann_file'])
