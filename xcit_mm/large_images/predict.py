"""Predict an image that does not fit into memory, seen as a whole or in slices."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..device import release_memory
from ..errors import ArgumentError, UserError
from .backbone import Passes, grid_size
from .bands import Bands
from .detection import Objects, detect, require_detector
from .images import open_image, overview
from .memory import free_memory
from .normalisation import NormalisedImage
from .progress import Progress, silent
from .results import PICTURE_SIDE, LargeDetections, LargeSegmentation
from .segmentation import label, label_dtype, require_segmentor
from .sliced import Slices, detect_slices, label_slices
from .workspace import Workspace, is_begun

if TYPE_CHECKING:
    from ..inference.model import Model

GIB = 2**30


@dataclass(frozen=True)
class LargeOptions:
    """How a large image is predicted; see :meth:`xcit_mm.inference.model.Model.predict_large`."""

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
    identity = dict(image=source.identity, checkpoint=model)
    predict = _streamed if options.sliced is None else _sliced
    result = predict(model, pixels, size, options, identity, progress)
    if result is None:
        return None
    picture = overview(size, pixels.pixels, PICTURE_SIDE)
    if pixels.bands is not None:
        picture = pixels.bands.picture(picture)
    about = model.classes, model.palette, source.georeference
    if isinstance(result, Objects):
        return LargeDetections(size, picture, *result, *about)
    return LargeSegmentation(size, picture, *result, *about)


def check_options(model: 'Model', options: LargeOptions) -> None:
    """Refuse options that a model cannot follow, before an image is opened."""
    if model.task == 'panoptic':
        raise UserError('a panoptic model cannot predict large images: name another model')
    if options.sliced is None:
        require = require_detector if model.task == 'detection' else require_segmentor
        require(model.module)
    elif options.statistics_window is not None or options.with_scores:
        raise ArgumentError('slices have no statistics window and no scores: leave out one of them')
    if options.statistics_window is not None and options.statistics_window < 1:
        raise ArgumentError(f'a statistics window of {options.statistics_window} pixels is none')


def _streamed(
    model: 'Model',
    pixels: NormalisedImage,
    size: tuple[int, int],
    options: LargeOptions,
    identity: dict[str, Any],
    progress: Progress,
) -> Objects | tuple | None:
    """Predict an image that the backbone sees as a whole; None if this is not the first process."""
    backbone = model.module.backbone
    bands = Bands(grid_size(backbone, pixels.shape)[0])
    passes = Passes(
        backbone, pixels, Workspace(), bands, statistics_window=options.statistics_window
    )
    needed = passes.bytes_needed
    if model.task == 'segmentation':
        item = label_dtype(model.module).itemsize + options.with_scores
        needed += math.prod(size) * item
    identity['settings'] = [passes.tile, str(passes.dtype), passes.statistics_window]
    workspace = _workspace(needed, passes.bytes_of_tile, bands, options, identity, progress)
    passes.workspace = workspace
    release_memory()
    passes.run(progress)
    if model.task == 'detection':
        objects = detect(model.module, passes, size, options.score_thr, progress)
        workspace.remove()
        return objects
    stores = label(model.module, passes, size, options.with_scores, progress)
    if bands.count > 1:
        own = stores
        stores = [
            workspace.store(f'all_{i}', slice(0, size[0]), store.shape[1:], store.dtype)
            for i, store in enumerate(own)
            if bands.rank == 0
        ]
        for i, store in enumerate(own):
            bands.collect(store, stores[i] if stores else None)
    if bands.rank:
        workspace.remove()
        return None
    arrays = [store.array()[..., 0] for store in stores]
    return workspace, arrays[0], arrays[1] if options.with_scores else None


def _sliced(
    model: 'Model',
    pixels: NormalisedImage,
    size: tuple[int, int],
    options: LargeOptions,
    identity: dict[str, Any],
    progress: Progress,
) -> Objects | tuple:
    """Predict an image slice by slice."""
    slices = Slices(size, options.sliced, options.overlap)
    bands = Bands(size[0])
    if bands.count > 1:
        raise UserError('slices are predicted by a single process: leave out torchrun')
    progress.expect(1)
    if model.task == 'detection':
        return detect_slices(model, pixels, slices, options.score_thr, progress)
    dtype = label_dtype(model.module)
    identity['settings'] = [options.sliced, options.overlap]
    needed = math.prod(size) * dtype.itemsize
    workspace = _workspace(needed, 0, bands, options, identity, progress)
    labels = workspace.store('labels', slice(0, size[0]), (size[1], 1), dtype)
    label_slices(model, pixels, slices, labels, progress)
    return workspace, labels.array()[..., 0], None


def _workspace(
    needed: int,
    for_tile: int,
    bands: Bands,
    options: LargeOptions,
    identity: dict[str, Any],
    progress: Progress,
) -> Workspace:
    """Decide where the tokens are kept: in memory if they fit, else in the folder of the options.

    ``needed`` counts the bytes of the tokens of all processes, ``for_tile`` those of the tensors of
    a tile, which are always in memory.
    """
    own = -(-needed // bands.count)
    limit = (free_memory() // 2 if options.memory is None else options.memory) - for_tile
    folder = options.store and Path(options.store, f'part_{bands.rank + 1}_of_{bands.count}')
    if bands.lowest(own <= limit and not (folder and is_begun(folder))):
        return Workspace()
    if folder is None:
        raise ArgumentError(
            f'the tokens need {own / GIB:.2f} GiB, and their tiles {for_tile / GIB:.2f} GiB, more '
            'than they may take of the memory: name a folder for the tokens with store=DIR'
        )
    workspace = Workspace(folder, identity | dict(checkpoint=_fingerprint(identity['checkpoint'])))
    workspace.require_space(own)
    if bands.rank == 0:
        begun = f'; {workspace.finished} passes are finished' if workspace.finished else ''
        progress.report(f'{own / GIB:.2f} GiB of tokens go into {folder}{begun}')
    return workspace


def _fingerprint(model: 'Model') -> str:
    digest = hashlib.sha256()
    for name, tensor in model.module.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
