"""The predictions for an image whose maps the backbone computes as a whole."""

import math
from typing import Any

import torch
from torch import nn

from ..progress import Progress, silent
from .detect import detect
from .objects import Objects
from .passes import Passes
from .segment import label
from .shards import Shards
from .token_files import TokenFile
from .workspace import Demand, Workspace


def label_dtype(num_classes: int) -> torch.dtype:
    return torch.uint8 if num_classes <= 255 else torch.int16  # pixels without data have a label


def demand_of(passes: Passes, size: tuple[int, int], bytes_of_pixel: int) -> Demand:
    """Return the memory that this process needs in :func:`results_of`, for an image (H, W).

    ``bytes_of_pixel`` is the size of a label and its score, or 0 for a detector.
    """
    shards, of_pixels = passes.shards, math.prod(size) * bytes_of_pixel
    needed = passes.bytes_needed + of_pixels // shards.count
    if shards.count > 1 and shards.rank == 0:
        needed += of_pixels  # the rows of all processes
    return Demand(needed, passes.bytes_of_tile)


def results_of(
    module: nn.Module,
    passes: Passes,
    size: tuple[int, int],
    labels: torch.dtype | None,
    *,
    with_scores: bool = False,
    score_thr: float = 0.0,
    progress: Progress = silent,
) -> dict[str, Any] | None:
    """Run the passes over an image, and find its objects or label its pixels.

    The files of the passes are in their workspace, which is not removed. All processes that share
    the image have to call this function.

    Args:
        module: A detector or a segmentor.
        passes: Its passes over the image.
        size: (H, W) of the image.
        labels: The dtype of labels, or None for a detector.
        with_scores: Whether to return the scores of the labels as well.
        score_thr: The lowest score of the objects to return.
        progress: The display of the progress.

    Returns:
        On the first process, the attributes of :class:`.Objects` by decreasing score, or ``labels``
        (H, W) and their ``scores``; None on the others.
    """
    passes.run(progress)
    if labels is None:
        parts = passes.shards.gather(detect(module, passes, size, score_thr, progress))
        found = vars(Objects.cat(parts).by_score()) if parts else None
    else:
        stores = label(module, passes, size, labels, with_scores, progress)
        found = _collected(passes.shards, stores, size, passes.workspace)
    passes.shards.barrier()
    return found


def _collected(
    shards: Shards, stores: list[TokenFile], size: tuple[int, int], workspace: Workspace
) -> dict[str, Any] | None:
    """Return labels and scores (H, W) of all processes; None on all but the first process."""
    if shards.count > 1:
        complete = [
            workspace.open(f'all_{i}', slice(0, size[0]), store.shape[1:], store.dtype)
            for i, store in enumerate(stores)
            if shards.rank == 0
        ]
        for i, store in enumerate(stores):
            shards.collect(store, complete[i] if complete else None, size[0])
        stores = complete
    for store in stores:
        store.verify()
    labels, scores = [*(store.array()[..., 0] for store in stores), None, None][:2]
    return None if labels is None else dict(labels=labels, scores=scores)
