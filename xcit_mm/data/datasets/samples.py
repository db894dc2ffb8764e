"""The samples of a dataset: a bad one is named, and in training another one replaces it."""

import hashlib
import random
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from mmcv.transforms import BaseTransform
from torch.utils.data import Dataset

from ...base.errors import UserError, one_line
from ..transforms.decode import BadImageError, SampleError, explained

MAX_TRIES = 10  # unreadable samples in a row after which a batch is given up


class SampleRequest(NamedTuple):
    """A sample to load, and its position in the run, from which its augmentation follows."""

    index: int
    position: tuple[int, ...]


class BadSample(NamedTuple):
    """A sample that cannot be read."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f'{self.file}: {self.reason}'


class Samples(Dataset):
    """A dataset that returns each sample, or None if it is bad, with a list of bad samples.

    Hooks read and set attributes of the dataset of a loader, such as its pipeline. These are
    attributes of the wrapped dataset.
    """

    def __init__(self, dataset: Dataset) -> None:
        vars(self)['dataset'] = dataset

    def __getattr__(self, name: str) -> Any:
        # 'dataset' is missing while a copy is made; PyTorch would read a batch by __getitems__.
        if name in ('dataset', '__getitems__'):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.dataset, name, value)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, list[BadSample]]:
        try:
            return self.dataset[index], []
        except SampleError as error:
            return None, [_bad_sample(error.file, error.cause)]
        except Exception as error:  # decoders and transforms may raise anything
            return None, [_bad_sample(self._file(index), error)]

    def _file(self, index: int) -> str:
        try:
            return self.dataset.get_data_info(index)['img_path']
        except Exception:
            return f'sample {index}'


class TrainingSamples(Samples):
    """Samples whose augmentation follows from their position; another replaces a bad one."""

    def __getitem__(self, request: SampleRequest) -> tuple[Any, list[BadSample]]:
        seed_all(*request.position)
        index = request.index
        bad: list[BadSample] = []
        while len(bad) < MAX_TRIES:
            sample, problem = super().__getitem__(index)
            bad += problem
            if sample is not None:
                return sample, bad
            index = np.random.randint(len(self))
        return None, bad


def _bad_sample(file: str, error: Exception) -> BadSample:
    """Return a bad sample; unless its file is the cause, name the transform that failed."""
    if isinstance(error, (BadImageError, UserError)):
        return BadSample(file, explained(error))
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    owners = [frame.f_locals.get('self') for frame in frames]
    transforms = [owner for owner in owners if isinstance(owner, BaseTransform)]
    place = f' in {one_line(repr(transforms[-1]))}' if transforms else ''
    return BadSample(file, explained(error) + place)


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Leave the random numbers of Python, NumPy and PyTorch on the CPU as they are."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        for restore, state in zip(
            (random.setstate, np.random.set_state, torch.set_rng_state), states, strict=True
        ):
            restore(state)


def seed_all(*position: int) -> None:
    """Seed Python, NumPy and PyTorch, on all devices, for one position of a run.

    Positions that differ in any number, or in their length, have unrelated random numbers.
    """
    digest = hashlib.blake2b(repr(position).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, 'little')
    random.seed(seed)
    np.random.seed(seed % 2**32)  # NumPy allows no larger seed
    torch.manual_seed(seed % 2**63)
