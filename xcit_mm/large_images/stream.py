"""Compute the four maps of a backbone for an image of any size."""

import math
import shutil
from pathlib import Path

import numpy as np
import torch
from torch import distributed

from ..errors import ArgumentError
from ..models import XCiT
from .backbone import Image, Passes, grid_size, require_streamable
from .bands import Bands
from .lazy_maps import LazyMap
from .memory import free_memory
from .windows import Window, tiles
from .workspace import Workspace

LEVEL_TILE = 1024  # pixels of the image whose part of a map is written at a time


@torch.inference_mode()
def stream(
    backbone: XCiT,
    image: Image,
    rows: int | None = None,
    memory: int | None = None,
    store: str | Path | None = None,
    group: distributed.ProcessGroup | None = None,
) -> list[np.ndarray]:
    """Compute the maps of a backbone for an image that does not fit into memory as a whole.

    The maps equal ``backbone(image[None])`` up to rounding. Each layer is computed tile by tile,
    and its attention sees the whole image (see :class:`xcit_mm.large_images.backbone.Passes`). If
    ``torch.distributed`` is initialised, each process computes a band of rows of the image.

    Args:
        backbone: An XCiT in evaluation mode, in float32, float64, bfloat16 or float16.
        image: The normalised image: an array, a memory map, a tensor, or any object with a
            ``shape`` whose windows ``image[:, top:bottom, left:right]`` are such arrays.
        rows: Height of the tiles in tokens; the tiles are then as wide as the image. Default:
            tiles of about 16,000 tokens.
        memory: Bytes that tokens and maps may take in memory. If they need more, they are stored
            in files in ``store``. Default: half of the free memory.
        store: A folder for these files. At the end, it holds the maps.
        group: The group of processes that share the image. Default: all processes.

    Returns:
        The maps at strides 4, 8, 16 and 32 (without those below ``start_level``), each (C, H_i,
        W_i) in the dtype of the backbone (float32 for bfloat16, which NumPy lacks). They are
        memory maps of files if they do not fit into memory. If there are several processes, each
        one gets its rows, from ``H_i * rank // count`` to ``H_i * (rank + 1) // count``.

    Raises:
        ValueError: If the backbone cannot be streamed, or an argument is invalid.
        UserError: If ``memory`` is too small and ``store`` is None, or if the disk is too small.
    """
    require_streamable(backbone)
    bands = Bands(grid_size(backbone, image.shape)[0], group)
    passes = Passes(backbone, image, Workspace(), bands, rows)
    dtype = torch.float32 if passes.dtype == torch.bfloat16 else passes.dtype
    needed = passes.bytes_needed + sum(map(math.prod, passes.level_shapes)) * dtype.itemsize
    if bands.lowest(needed <= (free_memory() // 2 if memory is None else memory)):
        store = None
    elif store is None:
        raise ArgumentError(
            f'the tokens and maps need {needed / 2**30:.1f} GiB, more than memory={memory}: name a '
            'folder for them with store=DIR'
        )
    else:
        store = Path(store, f'band_{bands.rank}_of_{bands.count}')
        shutil.rmtree(store / 'tokens', ignore_errors=True)  # left by a call that was killed
        passes.workspace = Workspace(store / 'tokens')
        passes.workspace.require_space(needed)
    passes.run()
    maps = [
        _written(level, 4 * 2**i, dtype, store and store / f'map_{i}.npy')
        for i, level in enumerate(passes.levels(), start=backbone.start_level)
    ]
    passes.workspace.remove()
    return maps


def _written(level: LazyMap, stride: int, dtype: torch.dtype, path: Path | None) -> np.ndarray:
    _, C, H, W = level.shape
    own = Window(level.bands.share(H), slice(0, W))
    shape, kind = (C, *own.size), torch.empty(0, dtype=dtype).numpy().dtype
    if path is None:
        array = np.empty(shape, kind)
    else:
        array = np.lib.format.open_memmap(path, 'w+', kind, shape)
    side = LEVEL_TILE // stride
    for window in tiles(own, (side, side)):
        array[(slice(None), *window.within(own))] = level.read(window)[0].to(dtype).cpu().numpy()
    return array
