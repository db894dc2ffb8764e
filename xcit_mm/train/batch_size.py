"""The largest batch that fits into memory, and gradient accumulation up to the recipe's batch."""

import ast
import gc
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import psutil
import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import all_reduce, get_world_size, is_distributed
from mmengine.model.utils import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner

from ..base.errors import UserError, is_out_of_memory
from ..base.free_memory import free_memory
from ..base.processes import cpu_group
from ..config.adapt import AUTO
from ..config.iterations import averages, multiply_iterations
from ..data.datasets.samples import SampleRequest, TrainingSamples, seed_all

LOADER = 'train_dataloader'
IN_PROCESS = dict(batch_size=1, num_workers=0, timeout=0)
IN_PROCESS |= dict(persistent_workers=False, prefetch_factor=None)
SHARE = 0.9  # of the memory that a trial may use; the rest is for images that it has not drawn
CANDIDATES = 16  # of the largest images, which are drawn
DRAWS = 4  # of each of them: a pipeline has random sizes


def choose_batch_size(cfg: Config) -> list[str]:
    """Replace ``train_dataloader.batch_size='auto'`` by the largest batch that fits into memory.

    Training steps with the largest images that the pipeline draws try the divisors of the number of
    images in an update of the recipe (``auto_scale_lr.base_batch_size``), from the largest on.
    Gradients of several batches are accumulated until an update has as many images as in the
    recipe. The iterations of the run, its validations, schedule and checkpoints are multiplied by
    the number of accumulated batches, so that the run makes as many updates as the recipe. All
    processes use the smallest batch size of any of them. A resumed run reads the batch size from
    the config in its work dir.

    Edits ``cfg``, and returns sentences for the log.

    Raises:
        UserError: If not even one image fits.
    """
    base, world = cfg.auto_scale_lr.base_batch_size, get_world_size()
    most = max(1, base // world)
    if cfg.get('resume'):
        size = _size_of_run(Path(cfg.work_dir, Path(cfg.filename).name))
    else:
        sizes = [n for n in range(most, 0, -1) if most % n == 0]
        smallest = torch.tensor(_largest_that_fits(cfg, sizes))
        _release()
        all_reduce(smallest, 'min', cpu_group())
        size = int(smallest)
    if not size:
        raise UserError(
            f'{LOADER}.batch_size={AUTO}: not even one image can be trained within {SHARE:.0%} of '
            'the memory; use a smaller model or smaller images, or model.backbone.with_cp=True'
        )
    cfg.train_dataloader.batch_size = size
    counts = max(1, most // size)
    _accumulate(cfg, counts)
    return [
        f'{LOADER}.batch_size={size} fits. An update has {size * counts * world} images (batch '
        f'{size}, accumulative_counts {counts}, processes {world}), the recipe {base}. What the '
        f'config counts in iterations is multiplied by {counts}.'
    ]


def _size_of_run(path: Path) -> int:
    """Read the batch size from the config that a run has written, without executing the file."""
    for node in ast.parse(path.read_text(encoding='utf-8')).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == LOADER:
            return next(
                word.value.value for word in node.value.keywords if word.arg == 'batch_size'
            )
    raise UserError(f'{path} has no {LOADER}: write the batch_size that the log of the run names')


def _largest_that_fits(cfg: Config, sizes: Sequence[int]) -> int:
    """Return the first of the decreasing sizes with which steps fit into memory, or 0."""
    init_default_scope(cfg.default_scope)
    samples, collate = _largest_samples(cfg)
    device = torch.device(get_device())
    # Each process tries for itself, so nothing is synchronized.
    model = revert_sync_batchnorm(MODELS.build(cfg.model)).to(device)
    wrapper = build_optim_wrapper(model, deepcopy(cfg.optim_wrapper))
    copies = is_distributed() + bool(averages(cfg))
    size_of_copy = sum(p.numel() * p.element_size() for p in model.parameters())
    # What DistributedDataParallel and averaged weights will take.
    ballast = torch.ones(copies * size_of_copy, dtype=torch.uint8, device=device)  # noqa: F841

    def train(size: int) -> None:
        seed_all(size)
        for _ in range(2):  # the first step makes the state of the optimizer
            model.train()
            # A step changes its samples, for example by padding their masks.
            batch = [deepcopy(samples[i % len(samples)]) for i in range(size)]
            model.train_step(collate(batch), wrapper)

    for size in sizes:
        _release()  # here, because a caught error holds the tensors of its step
        try:
            # Measured for each size: what is freed between two of them is free memory, too.
            with _within_share(device):
                train(size)
            return size
        except Exception as error:
            if not is_out_of_memory(error):
                raise
    return 0


def _largest_samples(cfg: Config) -> tuple[list[Any], Callable]:
    """Draw the largest training samples; also return what joins samples to a batch.

    A batch is padded to its tallest and its widest image, so the second sample is the one that
    makes the largest batch with the first.
    """
    loader = Runner.build_dataloader({**cfg.train_dataloader, **IN_PROCESS}, seed=0)
    dataset = TrainingSamples(loader.dataset)

    def demand(index: int) -> tuple[int, int]:
        info = dataset.get_data_info(index)
        pixels = (info.get('height') or 0) * (info.get('width') or 0)
        return pixels, len(info.get('instances') or ())

    largest = sorted(range(len(dataset)), key=demand, reverse=True)[:CANDIDATES]
    requests = (SampleRequest(i, (i, draw)) for i in largest for draw in range(DRAWS))
    drawn = [sample for request in requests if (sample := dataset[request][0]) is not None]
    drawn.sort(key=lambda sample: math.prod(_size(sample)), reverse=True)
    if not drawn:
        raise UserError(f'{LOADER}.batch_size={AUTO}: no training image can be read')
    height, width = _size(drawn[0])
    second = max(
        drawn, key=lambda sample: max(height, _size(sample)[0]) * max(width, _size(sample)[1])
    )
    return [drawn[0], second, *drawn[1:]], loader.collate_fn


def _size(sample: Any) -> tuple[int, int]:
    """Return the height and width of a sample, or of the largest of its views."""
    inputs = sample['inputs'] if isinstance(sample, dict) else sample
    if isinstance(inputs, (list, tuple)):
        return max(map(_size, inputs))
    return (1, 1, *getattr(inputs, 'shape', ()))[-2:]


@contextmanager
def _within_share(device: torch.device) -> Iterator[None]:
    """Make steps that need more than their share of the memory raise errors.

    Without a limit, Linux would kill a process on a CPU. Windows has none.
    """
    if device.type == 'cuda':
        torch.cuda.set_per_process_memory_fraction(SHARE)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
    elif sys.platform == 'linux':
        import resource

        sharing = int(os.environ.get('LOCAL_WORLD_SIZE', get_world_size()))
        limits = resource.getrlimit(resource.RLIMIT_DATA)
        limit = psutil.Process().memory_info().data + int(SHARE * free_memory()) // sharing
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, limits)
    else:
        yield


def _accumulate(cfg: Config, counts: int) -> None:
    """Accumulate the gradients of ``counts`` iterations, and multiply what is in iterations."""
    if counts == 1:
        return
    cfg.optim_wrapper.accumulative_counts = counts
    multiply_iterations(cfg, counts)


def _release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
