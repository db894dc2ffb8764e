"""Predict an image that does not fit into memory, as a whole or in slices."""

import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..device import release_memory
from ..errors import ArgumentError, UserError
from .backbone import Passes, grid_size, require_streamable
from .bands import Bands
from .detection import Objects, detect, require_detector
from .images import ImageSource, open_image, overview
from .memory import free_memory
from .normalisation import NormalisedImage
from .progress import Progress, silent
from .results import PICTURE_SIDE, LargeDetections, LargeSegmentation
from .segmentation import label, require_segmentor
from .sliced import Slices, detect_slices, label_slices
from .store import TokenStore
from .workspace import Workspace, is_begun

if TYPE_CHECKING:
    from ..inference.model import Model

GIB = 2**30


@dataclass(frozen=True)
class LargeOptions:
    """The arguments of :meth:`xcit_mm.inference.model.Model.predict_large`."""

    memory: int | None = None
    store: str | Path | None = None
    score_thr: float = 0.0
    with_scores: bool = False
    statistics_window: int | None = None
    sliced: int | None = None
    overlap: int = 128


def predict_large(
    model: 'Model',
    image: str | Path | np.ndarray,
    options: LargeOptions,
    progress: Progress = silent,
) -> LargeSegmentation | LargeDetections | None:
    """Predict an image; see :meth:`xcit_mm.inference.model.Model.predict_large`."""
    check_options(model, options)
    source = open_image(image, model.read)
    pixels = NormalisedImage(source, model)
    for note in pixels.notes:
        progress.report(note)
    size = source.shape[:2]
    predict = _streamed if options.sliced is None else _sliced
    result, workspace = predict(model, source, pixels, options, progress)
    if result is None:
        return None
    picture = overview(size, pixels.pixels, PICTURE_SIDE)
    if pixels.bands is not None:
        picture = pixels.bands.picture(picture)
    about = model.classes, model.palette, source.georeference, workspace
    if isinstance(result, Objects):
        return LargeDetections(size, picture, *result, *about)
    return LargeSegmentation(size, picture, *result, *about)


def check_options(model: 'Model', options: LargeOptions) -> None:
    """Refuse options that do not fit the model, before an image is opened."""
    if model.task == 'panoptic':
        raise UserError('a panoptic model cannot predict large images: name another model')
    if options.with_scores and model.task == 'detection':
        raise ArgumentError('a detector has no scores of labels: leave out --scores (with_scores)')
    if options.sliced is None:
        require_streamable(model.module.backbone)
        require = require_detector if model.task == 'detection' else require_segmentor
        require(model.module)
    elif options.statistics_window is not None or options.with_scores:
        raise ArgumentError('slices have no statistics window and no scores: leave out one of them')
    if options.statistics_window is not None and options.statistics_window < 1:
        raise ArgumentError(
            f'statistics_window={options.statistics_window!r} is not a positive number of pixels'
        )


def _streamed(
    model: 'Model',
    source: ImageSource,
    pixels: NormalisedImage,
    options: LargeOptions,
    progress: Progress,
) -> tuple[Objects | tuple | None, Workspace]:
    """Predict an image that the backbone sees as a whole; None on all but the first process."""
    backbone, size = model.module.backbone, source.shape[:2]
    bands = Bands(grid_size(backbone, pixels.shape)[0])
    passes = Passes(
        backbone, pixels, Workspace(), bands, statistics_window=options.statistics_window
    )
    needed = passes.bytes_needed
    if model.task == 'segmentation':
        needed += math.prod(size) * (_label_dtype(model).itemsize + options.with_scores)
    settings = [passes.tile, str(passes.dtype), passes.statistics_window]
    workspace = _workspace(
        needed, passes.bytes_of_tile, bands, model, source, settings, options, progress
    )
    passes.workspace = workspace
    release_memory()
    try:
        passes.run(progress)
        if model.task == 'detection':
            result = detect(model.module, passes, size, options.score_thr, progress)
        else:
            dtype = _label_dtype(model)
            stores = label(model.module, passes, size, dtype, options.with_scores, progress)
            arrays = _collected(bands, stores, size, workspace)
            result = arrays and (arrays[0], arrays[1] if options.with_scores else None)
    except BaseException:
        workspace.release()
        raise
    bands.wait()
    if result is None:
        workspace.remove()
    return result, workspace


def _collected(
    bands: Bands, stores: list[TokenStore], size: tuple[int, int], workspace: Workspace
) -> list[np.ndarray] | None:
    """Return arrays (H, W) with the rows of all processes; None on all but the first process."""
    if bands.count > 1:
        complete = [
            workspace.store(f'all_{i}', slice(0, size[0]), store.shape[1:], store.dtype)
            for i, store in enumerate(stores)
            if bands.rank == 0
        ]
        for i, store in enumerate(stores):
            bands.collect(store, complete[i] if complete else None)
        stores = complete
    return [store.array()[..., 0] for store in stores] or None


def _sliced(
    model: 'Model',
    source: ImageSource,
    pixels: NormalisedImage,
    options: LargeOptions,
    progress: Progress,
) -> tuple[Objects | tuple, Workspace]:
    """Predict an image slice by slice."""
    size = source.shape[:2]
    slices = Slices(size, options.sliced, options.overlap)
    bands = Bands(size[0])
    if bands.count > 1:
        raise UserError('slices are predicted by a single process: leave out torchrun')
    progress.expect(1)
    if model.task == 'detection':
        return detect_slices(model, pixels, slices, options.score_thr, progress), Workspace()
    dtype, settings = _label_dtype(model), [options.sliced, options.overlap]
    needed = math.prod(size) * dtype.itemsize
    workspace = _workspace(needed, 0, bands, model, source, settings, options, progress)
    try:
        labels = workspace.store('labels', slice(0, size[0]), (size[1], 1), dtype)
        label_slices(model, pixels, slices, labels, progress)
    except BaseException:
        workspace.release()
        raise
    return (labels.array()[..., 0], None), workspace


def _label_dtype(model: 'Model') -> torch.dtype:
    return torch.uint8 if len(model.classes) <= 256 else torch.int16


def _workspace(
    needed: int,
    for_tile: int,
    bands: Bands,
    model: 'Model',
    source: ImageSource,
    settings: list,
    options: LargeOptions,
    progress: Progress,
) -> Workspace:
    """Return a workspace in memory if the tokens fit, otherwise in the folder of the options.

    ``needed`` is the number of bytes of the tokens of all processes, and ``for_tile`` that of the
    tensors of a tile, which are always in memory.
    """
    own = -(-needed // bands.count)
    limit = options.memory
    if limit is None:
        limit = free_memory() // 2 // int(os.environ.get('LOCAL_WORLD_SIZE', '1'))
    folder = options.store and Path(options.store, f'part_{bands.rank + 1}_of_{bands.count}')
    if bands.lowest(own + for_tile <= limit and not (folder and is_begun(folder))):
        return Workspace()
    if folder is None:
        raise ArgumentError(
            f'the tokens need {own / GIB:.2f} GiB and a tile needs {for_tile / GIB:.2f} GiB, but '
            f'the limit is {limit / GIB:.2f} GiB: name a folder for the tokens with store=DIR'
        )
    identity = dict(image=source.identity(), model=_fingerprint(model), settings=settings)
    workspace = Workspace(folder, identity)
    workspace.require_space(own)
    if bands.rank == 0:
        begun = f'; {workspace.finished} passes are finished' if workspace.finished else ''
        progress.report(f'{own / GIB:.2f} GiB of tokens are kept in {folder}{begun}')
    return workspace


def _fingerprint(model: 'Model') -> str:
    """Return a digest of what determines a prediction: weights, buffers, layers and settings."""
    module = model.module
    digest = hashlib.sha256(repr(module).encode())
    settings = (
        model.task,
        module.test_cfg,
        module.backbone.out_indices,
        getattr(module, 'align_corners', None),
        model.bands and vars(model.bands),
    )
    digest.update(repr(settings).encode())
    for name, tensor in (*module.state_dict().items(), *module.named_buffers()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
