"""The predictions for an image whose maps the backbone computes as a whole."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from ...base.geometry import Window, overlap, tiles, whole
from ...base.progress import Progress, silent
from ...large.files.image_source import TILE
from ...large.maps.detect import detect
from ...large.maps.objects import Objects
from ...large.maps.segment import label, without_data
from ...large.tokens.passes import Passes
from ...large.tokens.shards import Shards
from ...large.tokens.token_files import TokenFile
from ...large.tokens.workspace import Demand, Workspace


def label_dtype(num_classes: int) -> torch.dtype:
    """Return the dtype of labels, which has a number for pixels without a label."""
    return torch.uint8 if num_classes <= 255 else torch.int16


def bytes_of_pixel(outputs: Mapping[str, torch.dtype], num_classes: int) -> int:
    """Return the size of the outputs of :func:`.label` for a pixel."""
    values = dict(probabilities=max(2, num_classes))
    return sum(dtype.itemsize * values.get(name, 1) for name, dtype in outputs.items())


def memory_needed(passes: Passes, size: tuple[int, int], of_pixel: int) -> Demand:
    """Return the memory that this process needs in :func:`results_of`, for an image (H, W).

    ``of_pixel`` is the number of bytes of the outputs for a pixel, 0 for a detector.
    """
    shards, of_pixels = passes.shards, math.prod(size) * of_pixel
    needed = passes.bytes_needed + of_pixels // shards.count
    if shards.count > 1 and shards.rank == 0:
        needed += of_pixels  # the rows of all processes
    return Demand(needed, passes.bytes_of_tile, passes.bytes_needed, passes.device)


def results_of(
    module: nn.Module,
    passes: Passes,
    size: tuple[int, int],
    outputs: Mapping[str, torch.dtype],
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
        outputs: See :func:`.label`; {} for a detector.
        score_thr: The lowest score of the objects to return.
        progress: The display of the progress.

    Returns:
        On the first process, the attributes of :class:`.objects.Objects` by decreasing score, or
        the arrays of the outputs, (H, W) or (H, W, classes); None on the others.
    """
    passes.run(progress)
    if not outputs:
        parts = passes.shards.gather(detect(module, passes, size, score_thr, progress))
        results = vars(Objects.cat(parts).by_score()) if parts else None
    else:
        stores = label(module, passes, size, outputs, progress)
        results = _collected(passes.shards, stores, size, passes.workspace)
    passes.shards.barrier()
    return results


def _collected(
    shards: Shards, stores: dict[str, TokenFile], size: tuple[int, int], workspace: Workspace
) -> dict[str, Any] | None:
    """Return the outputs of all processes; None on all but the first process."""
    if shards.count > 1:
        complete = {
            name: workspace.open(f'all_{name}', slice(0, size[0]), store.shape[1:], store.dtype)
            for name, store in stores.items()
            if shards.rank == 0
        }
        for name, store in stores.items():
            shards.collect(store, complete.get(name), size[0])
        stores = complete
    arrays = {name: store.array() for name, store in stores.items()}
    arrays = {k: v[..., 0] if v.shape[2] == 1 else v for k, v in arrays.items()}
    return arrays if shards.rank == 0 else None


def in_frame(
    outputs: Mapping[str, np.ndarray], area: Window, size: tuple[int, int], workspace: Workspace
) -> dict[str, np.ndarray]:
    """Return the outputs for a window of an image as arrays of all of its pixels (H, W)."""
    placed = {}
    for name, values in outputs.items():
        values = values.reshape(*values.shape[:2], -1)
        dtype = torch.from_numpy(values[:0]).dtype
        shape = size[1], values.shape[2]
        store = workspace.open(f'scene_{name}', slice(0, size[0]), shape, dtype)
        for window in tiles(whole(size), TILE):
            part = torch.full((*window.size, shape[1]), without_data(name, dtype), dtype=dtype)
            inside = Window(*(overlap(a, b) for a, b in zip(window, area, strict=True)))
            if all(inside.size):
                inner = np.array(values[tuple(inside.within(area))])
                part[tuple(inside.within(window))] = torch.from_numpy(inner)
            store.write(window, part)
        array = store.array()
        placed[name] = array[..., 0] if shape[1] == 1 else array
    return placed
