"""What the processes of a training or a test must have in common."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ..config.tree import leaf_datasets
from ..environment import versions
from ..processes import digest_of_file, shortened
from ..weights.cache import is_url

# Values, in addition to paths, that may differ between machines without changing a result: how the
# data is loaded, and where files are.
OWN = {
    *('num_workers', 'persistent_workers', 'prefetch_factor', 'pin_memory', 'timeout'),
    *('work_dir', 'data_root', 'load_from', 'checkpoint', 'ann_file', 'test_dir', 'out_dir'),
    *('outfile_prefix', 'save_dir', 'resource_limit'),
}


def described(cfg: Config, splits: tuple[str, ...]) -> dict[str, str]:
    """Return what determines the result of a run, for :func:`xcit_mm.processes.require_same`.

    These are the versions of the packages, the values of the config, and digests of the checkpoints
    and the annotation files. Paths may differ. Of a dataset without an annotation file, the names
    and sizes of its files are compared, because reading them would take too long.
    """
    init_cfg = (cfg.model.get('backbone') or {}).get('init_cfg') or {}
    files = {
        'the checkpoint': cfg.get('load_from'),
        'the pretrained backbone': init_cfg.get('checkpoint'),
    }
    for split in splits:
        dataset = (cfg.get(f'{split}_dataloader') or {}).get('dataset') or {}
        paths = (path for leaf in leaf_datasets(dataset) for path in _files_of(leaf))
        files |= {f'part {i} of the {split} data': path for i, path in enumerate(paths, 1)}
    digests = {name: _digest(file) for name, file in files.items() if file}
    return versions() | dict(_leaves(cfg.to_dict())) | digests


def _files_of(dataset: dict) -> Iterator[Path]:
    """Yield the annotation file of a dataset, or its folders if it has none."""
    root = dataset.get('data_root') or ''
    if dataset.get('ann_file'):
        yield Path(root, dataset['ann_file'])
        return
    for prefix in filter(None, (dataset.get('data_prefix') or {}).values()):
        yield Path(root, prefix)


def _digest(file: str | Path) -> str:
    path = Path(file).expanduser()
    if path.is_file():
        return digest_of_file(path)
    return _listed(path) if path.is_dir() else str(file)


def _leaves(node: Any, place: str = '') -> Iterator[tuple[str, str]]:
    """Yield the dotted places and the texts of the values that have to be the same."""
    if isinstance(node, (dict, list, tuple)):
        for name, child in node.items() if isinstance(node, dict) else enumerate(node):
            if name not in OWN or isinstance(child, dict):  # such as default_hooks.checkpoint
                yield from _leaves(child, f'{place}.{name}'.lstrip('.'))
    elif isinstance(node, str):
        if '/' not in node or is_url(node):  # otherwise, it is a path
            yield place, node
    elif isinstance(node, (int, float, type(None))):
        yield place, str(node)
    else:  # a class, a function or an object, whose text holds an address
        yield place, getattr(node, '__qualname__', type(node).__qualname__)


def _listed(folder: Path) -> str:
    """Return a digest of the names and sizes of the files below a folder."""
    files = sorted(path for path in folder.rglob('*') if path.is_file())
    sizes = [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files]
    return f'{len(files)} files {shortened(hashlib.sha256(repr(sizes).encode()))}'
