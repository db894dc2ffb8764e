"""Predict an image that does not fit into memory, as a whole or in slices."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from mmengine.dist import get_world_size

from ..device import release_memory
from ..environment import versions
from ..errors import ArgumentError, UserError
from ..fusion import in_dtype
from ..processes import cpu_group, digest_of_module, require_same, together
from .detect import Objects, detect, require_detector
from .normalized import NormalizedImage
from .passes import Passes
from .progress import Progress, silent
from .results import PICTURE_SIDE, LargeDetections, LargeSegmentation
from .segment import label, require_segmentor
from .shards import Bands
from .slices import detect_slices, label_slices, slices_of
from .streamable import require_streamable
from .token_files import TokenFile
from .window_files import open_image, overview
from .workspace import GIB, Demand, Workspace, open_workspace

if TYPE_CHECKING:
    from ..inference.model import Model


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
    group = cpu_group()
    with together(group):
        check_options(model, options)
        used = 3 if model.bands is None else None  # of an RGB image
        source = open_image(image, model.read, used)
        preprocessor, transforms = model.module.data_preprocessor, model.pipeline.transforms[1:]
        pixels = NormalizedImage(source, preprocessor, transforms, model.bands)
        if group is not None:
            content = dict(size=pixels.source.shape, content=pixels.source.content())
            values = {f'the {name} of the image': value for name, value in content.items()}
            require_same(described(model, options) | values, group, pixels.source.name)
        for note in pixels.notes:
            progress.report(note)
        predict = _streamed if options.sliced is None else _sliced
        result, workspace = predict(model, pixels, options, progress)
        try:
            if result is not None:
                picture = overview(pixels.size, pixels.pixels, PICTURE_SIDE, pixels.max_rows)
            pixels.source.require_unchanged()
        except UserError:
            workspace.remove()  # it could not be continued
            raise
        if result is None:
            return None
    if pixels.bands is not None:
        picture = pixels.bands.picture(picture)
    georeference = pixels.source.georeference
    about = pixels.size, picture, model.classes, model.palette, georeference, workspace
    return (LargeDetections if isinstance(result, Objects) else LargeSegmentation)(*about, *result)


def described(model: 'Model', options: LargeOptions) -> dict[str, Any]:
    """Return what determines the prediction of an image, for :func:`.require_same`."""
    names = 'score_thr', 'with_scores', 'statistics_window'
    return {
        'the model (config and checkpoint)': _fingerprint(model),
        'dtype': model.streamed_dtype,
        **{name: getattr(options, name) for name in names},
        **versions(),
    }


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
        raise ArgumentError('--sliced cannot be combined with --statistics-window or --scores')
    elif get_world_size() > 1:
        raise UserError('slices are predicted by a single process: leave out torchrun')
    if options.statistics_window is not None and options.statistics_window < 1:
        raise ArgumentError(
            f'statistics_window={options.statistics_window!r} is not a positive number of pixels'
        )


def _streamed(
    model: 'Model', pixels: NormalizedImage, options: LargeOptions, progress: Progress
) -> tuple[Objects | tuple | None, Workspace]:
    """Predict an image that the backbone sees as a whole; None on all but the first process."""
    size, dtype = pixels.size, _label_dtype(model)
    module = in_dtype(model.module, model.streamed_dtype)
    passes = Passes(module.backbone, pixels, statistics_window=options.statistics_window)
    bands, needed = passes.bands, passes.bytes_needed
    if model.task == 'segmentation':
        of_pixels = math.prod(size) * (dtype.itemsize + options.with_scores)
        needed += of_pixels // bands.count
        if bands.count > 1 and bands.rank == 0:
            needed += of_pixels  # the rows of all processes

    def identity() -> dict[str, Any]:
        settings = [passes.tile, str(passes.dtype), passes.statistics_window, options.with_scores]
        return _identity(model, pixels, settings)

    folder = Path(options.store, bands.part) if options.store else None
    demand = Demand(needed, passes.bytes_of_tile)
    workspace = open_workspace(demand, bands, options.memory, folder, identity)
    if bands.rank == 0:
        _report(workspace, needed, progress)
    passes.workspace = workspace
    release_memory()
    try:
        passes.run(progress)
        if model.task == 'detection':
            result = detect(module, passes, size, options.score_thr, progress)
        else:
            stores = label(module, passes, size, dtype, options.with_scores, progress)
            arrays = _collected(bands, stores, size, workspace)
            result = arrays and (*arrays, None)[:2]
    except BaseException:
        workspace.release()
        raise
    bands.barrier()
    if result is None:
        workspace.remove()
    return result, workspace


def _collected(
    bands: Bands, stores: list[TokenFile], size: tuple[int, int], workspace: Workspace
) -> list[np.ndarray] | None:
    """Return arrays (H, W) with the rows of all processes; None on all but the first process."""
    if bands.count > 1:
        complete = [
            workspace.open(f'all_{i}', slice(0, size[0]), store.shape[1:], store.dtype)
            for i, store in enumerate(stores)
            if bands.rank == 0
        ]
        for i, store in enumerate(stores):
            bands.collect(store, complete[i] if complete else None, size[0])
        stores = complete
    for store in stores:
        store.verify()
    return [store.array()[..., 0] for store in stores] or None


def _sliced(
    model: 'Model', pixels: NormalizedImage, options: LargeOptions, progress: Progress
) -> tuple[Objects | tuple, Workspace]:
    """Predict an image slice by slice."""
    slices = slices_of(pixels.size, options.sliced, options.overlap)
    dtype, needed = _label_dtype(model), 0
    if model.task == 'segmentation':
        needed = math.prod(pixels.size) * dtype.itemsize
    if options.store:
        settings = [options.sliced, options.overlap, options.score_thr, str(model.dtype)]
        identity = _identity(model, pixels, settings)
        workspace = Workspace(Path(options.store, 'sliced'), identity, needed)
        _report(workspace, needed, progress)
    else:
        workspace = open_workspace(Demand(needed), Bands(pixels.size[0]), options.memory, None)
    try:
        if model.task == 'detection':
            arguments = slices, options.score_thr, workspace, progress
            return detect_slices(model, pixels, *arguments), workspace
        labels = label_slices(model, pixels, slices, dtype, workspace, progress)
    except BaseException:
        workspace.release()
        raise
    return (labels.array()[..., 0], None), workspace


def _report(workspace: Workspace, needed: int, progress: Progress) -> None:
    """Tell where the stores are, and how much of a run that was killed is finished."""
    if workspace.folder is not None:
        done = [f'{number} {stage} are finished' for stage, number in workspace.finished.items()]
        kept = f'{needed / GIB:.2f} GiB are kept in {workspace.folder}'
        progress.report('; '.join([kept, *done]))


def _label_dtype(model: 'Model') -> torch.dtype:
    return torch.uint8 if len(model.classes) <= 256 else torch.int16


def _identity(model: 'Model', pixels: NormalizedImage, settings: list) -> dict[str, Any]:
    """Return what has to be the same for a run to continue; see :class:`.Workspace`."""
    settings = [*settings, pixels.is_bgr]
    return dict(image=pixels.source.identity(), model=_fingerprint(model), settings=settings)


def _fingerprint(model: 'Model') -> str:
    """Return a digest of what determines a prediction: weights, buffers, layers and settings."""
    module = model.module
    settings = (
        model.task,
        getattr(module, 'test_cfg', None),
        getattr(getattr(module, 'backbone', None), 'out_indices', None),
        getattr(module, 'align_corners', None),
        getattr(getattr(module, 'decode_head', None), 'threshold', None),
        model.bands and vars(model.bands),
    )
    return digest_of_module(module, repr(settings))
