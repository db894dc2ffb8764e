"""The four maps of a backbone for an image of any size."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..base.errors import ArgumentError, UserError
from ..base.geometry import Window, tiles
from ..base.processes import all_processes, cpu_group, digest_of_module, require_same
from ..network import XCiT
from .maps.lazy import LazyMap
from .maps.streamed_maps import Pyramid
from .tokens.backward import TrainedPasses, accumulate, new_gradients, pass_back
from .tokens.passes import Image, Passes
from .tokens.workspace import Demand, open_workspace

# Pixels of the image whose part of a map is computed at a time: few enough for the cache of a CPU,
# and wide, because each channel of a map is written row by row. A GPU computes more rows.
LEVEL_TILE = 32, 1024
BACKWARD_TILE = 128, 128  # pixels of a map whose gradient is passed back at a time


def stream_backward(
    backbone: XCiT,
    image: Image,
    gradients: Sequence[np.ndarray],
    rows: int | None = None,
    memory: int | None = None,
    store: str | Path | None = None,
) -> None:
    """Add the gradients of a backbone for an image that does not fit into memory to ``grad``.

    ``torch.autograd.backward(backbone(image[None]), gradients)`` computes the same gradients, up to
    rounding, if BatchNorm of the backbone is in evaluation mode. The maps are computed first, as by
    :func:`stream`. Each layer then passes its gradients back, tile by tile (see
    :mod:`xcit_mm.large.tokens.backward`). Stochastic depth is drawn once for the image.

    Args:
        backbone: An XCiT with ``norm_eval=True``, or in evaluation mode, in float32, float64 or
            bfloat16. In float32 it may also run under autocast in bfloat16.
        image: See :func:`stream`.
        gradients: The gradients of the maps that :func:`stream` returns: arrays, tensors, or any
            objects whose windows ``gradient[:, top:bottom, left:right]`` are such arrays.
        rows: See :func:`stream`.
        memory: Bytes that the inputs of the layers, the gradients of the tokens and a tile may take
            in memory. If they need more, they are stored in files in ``store``. Without a store, or
            if its disk is short of space, only every n-th input is kept, and the others are
            recomputed. Default: half of the free memory, divided by the number of processes on
            this machine.
        store: A folder for these files, which are removed at the end.

    If there are several processes, each one passes the gradients for its rows of the maps, and gets
    the gradients of the whole image.

    Raises:
        ValueError: If the backbone cannot be streamed or trained, or an argument is invalid.
        UserError: If ``memory`` is too small and ``store`` is None, if the disk is too small, if
            the image or the gradients have values that are not finite, or if the backbones or
            images of several processes differ. All of them raise it.
    """
    trained = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
    with new_gradients(trained) as added, all_processes(cpu_group()):
        passes = TrainedPasses(backbone, image, rows)
        _require_same_run(passes)
        own = [Window(passes.shards.share(H), slice(0, W)) for _, H, W in passes.map_shapes]
        shapes = [(passes.map_shapes[0][0], *window.size) for window in own]
        passed = [tuple(getattr(gradient, 'shape', ())) for gradient in gradients]
        if passed != shapes:
            raise ArgumentError(
                f'the gradients have the shapes {passed}, but the maps have {shapes}'
            )

        def read_back(*leaves: Any) -> None:
            maps = Pyramid(passes, *leaves).maps
            for level, gradient, window in zip(maps, gradients, own, strict=True):
                _read_back(level, gradient, window, passes.scale)

        parameters = [p for level in backbone.levels for m in level[2:] for p in m.parameters()]
        parameters = [p for p in parameters if p.requires_grad]
        pass_back(passes, parameters, read_back, memory, store)
    accumulate(trained, added)


def _read_back(level: LazyMap, gradient: np.ndarray, own: Window, scale: int) -> None:
    """Pass the gradient of a map back to the tokens, window by window."""
    for window in tiles(own, tuple(n * math.isqrt(scale) for n in BACKWARD_TILE)):
        values = level.read(window)
        part = gradient[(slice(None), *window.within(own))]
        if not isinstance(part, Tensor):
            part = torch.from_numpy(np.array(part))  # memory maps may be read-only
        if not part.isfinite().all():
            raise UserError('the gradients of the maps have values that are not finite')
        values.backward(part[None].to(values))
        level.tape.collect()


@torch.inference_mode()
def stream(
    backbone: XCiT,
    image: Image,
    rows: int | None = None,
    memory: int | None = None,
    store: str | Path | None = None,
) -> list[np.ndarray]:
    """Compute the maps of a backbone for an image that does not fit into memory as a whole.

    The maps equal ``backbone(image[None])`` up to rounding. Each layer is computed tile by tile,
    and its attention covers the whole image (see :class:`xcit_mm.large.tokens.passes.Passes`). If
    ``torch.distributed`` is initialized, each process computes a block of rows of the image.

    Args:
        backbone: An XCiT in evaluation mode, in float32, float64, bfloat16 or float16.
        image: The normalized image: an array, a memory map, a tensor, or any object with a
            ``shape`` whose windows ``image[:, top:bottom, left:right]`` are such arrays.
        rows: Height of the tiles in tokens; the tiles are then as wide as the image. Default:
            tiles of about 16,000 tokens.
        memory: Bytes that the tokens, the maps and a tile may take in memory. If they need more,
            tokens and maps are stored in files in ``store``. Default: half of the free memory,
            divided by the number of processes on this machine.
        store: A folder for these files. At the end, it holds the maps.

    Returns:
        The maps at strides 4, 8, 16 and 32 (without those below ``start_level``), each (C, H_i,
        W_i) in the dtype of the backbone (float32 for bfloat16, which NumPy lacks). They are
        memory maps of files if they do not fit into memory. If there are several processes, each
        one gets its rows, from ``H_i * rank // count`` to ``H_i * (rank + 1) // count``. They must
        pass the same image: its shape is compared before the first pass, but not its values.

    Raises:
        ValueError: If the backbone cannot be streamed, or an argument is invalid.
        UserError: If ``memory`` is too small and ``store`` is None, if the disk is too small, or
            if the backbones or images of several processes differ. All of them raise it.
    """
    with all_processes(cpu_group()):
        passes = Passes(backbone, image, rows)
        _require_same_run(passes)
        dtype = torch.float32 if passes.dtype == torch.bfloat16 else passes.dtype
        shards, tokens = passes.shards, passes.bytes_needed
        needed = tokens + sum(map(math.prod, passes.map_shapes)) * dtype.itemsize // shards.count
        folder = Path(store, f'maps_{shards.part}') if store else None
        demand = Demand(needed, passes.bytes_of_tile, tokens, passes.device)
        workspace = open_workspace(demand, shards, memory, folder / 'tokens' if folder else None)
        passes.workspace, maps = workspace, []
        try:
            passes.run()
            for level, (_, stride, *_) in zip(Pyramid(passes).maps, backbone.levels, strict=True):
                path = folder / f'stride_{stride}.npy' if workspace.folder else None
                tile = LEVEL_TILE[0] * passes.scale // stride, LEVEL_TILE[1] // stride
                maps.append(_written(level, tile, dtype, path))
        finally:
            workspace.remove()
    return maps


def _require_same_run(passes: Passes) -> None:
    """Refuse processes that do not share one image and one backbone."""
    if passes.shards.count > 1:
        values = {
            'the shape of the image': tuple(passes.image.shape),
            'the backbone': digest_of_module(passes.backbone),
            'the dtype': passes.dtype,
            'the size of the tiles': passes.tile,
        }
        require_same(values, cpu_group())


def _written(
    level: LazyMap, tile: tuple[int, int], dtype: torch.dtype, path: Path | None
) -> np.ndarray:
    _, C, H, W = level.shape
    own = Window(level.shards.share(H), slice(0, W))
    shape, kind = (C, *own.size), torch.empty(0, dtype=dtype).numpy().dtype
    if path is None:
        # NumPy would request huge pages, and the system needs longer for them than the copy takes.
        array = torch.empty(shape, dtype=dtype).numpy()
    else:
        array = np.lib.format.open_memmap(path, 'w+', kind, shape)
    values = torch.from_numpy(array)
    for window in tiles(own, tile):
        values[(slice(None), *window.within(own))] = level.read(window)[0]
    return array
