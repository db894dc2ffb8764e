"""The datasets of a config, and all of their files, read in parallel."""

from collections.abc import Iterator
from multiprocessing import get_all_start_methods
from typing import Any

import cv2
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from rich.console import Console
from rich.progress import track
from torch.utils.data import DataLoader, Dataset

from ...base.environment import quiet, require_framework
from ...base.errors import UserError, reason
from ...base.launchers import number_of_cores
from ...config.rules import check_data
from ...config.tree import split_datasets


def training_data(cfg: Config) -> Iterator[Any]:
    """Build the datasets that read the training files of a config, with scenes as whole images.

    Raises:
        UserError: If there are none, or the data is missing.
    """
    leaves = split_datasets(cfg, 'train')
    if not leaves:
        raise UserError(f'the config {cfg.filename} has no train_dataloader with a dataset')
    check_data(cfg, ('train',))
    require_framework(cfg.default_scope)
    init_default_scope(cfg.default_scope)
    for leaf in leaves:
        with quiet():  # tools/check_dataset.py itself reports what a dataset logs
            dataset = DATASETS.build(leaf)
        yield whole_scenes(dataset)


def whole_scenes(dataset: Any) -> Any:
    """Return the images of a dataset; a dataset of windows is read scene by scene."""
    return dataset.scenes() if hasattr(dataset, 'scenes') else dataset


def opener(dataset: Any) -> Any:
    """Return the transform that opens images without reading them, or None."""
    transforms = dataset.pipeline.transforms
    return next((t for t in transforms if type(t).__name__ == 'OpenImage'), None)


def read_in_parallel(parts: Dataset, workers: int | None, what: str) -> Iterator[Any]:
    """Yield the parts of a dataset in their order; one process per core by default reads.

    Raises:
        UserError: If a process crashes.
    """
    loader = DataLoader(
        parts,
        batch_size=None,
        num_workers=number_of_cores() if workers is None else workers,
        prefetch_factor=1,
        worker_init_fn=_use_one_thread,
        multiprocessing_context=get_all_start_methods()[0],
    )
    try:
        yield from track(loader, what, console=Console(stderr=True))
    except RuntimeError as error:
        raise UserError(f'{what}: a process crashed ({reason(error)})') from None


def _use_one_thread(worker: int) -> None:
    cv2.setNumThreads(0)  # the workers share the cores
