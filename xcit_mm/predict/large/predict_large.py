"""Prediction of an image that does not fit into memory, as a whole or in slices."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from mmengine.dataset import Compose
from mmengine.dist import get_world_size
from torch import nn

from ...base.device import release_memory
from ...base.environment import require, versions
from ...base.errors import ArgumentError, ChangedError, UserError
from ...base.geometry import Window, whole
from ...base.processes import cpu_group, digest_of_module, require_same, together
from ...base.progress import Progress, silent
from ...base.sizes import bytes_of
from ...data.transforms.multiband import LoadMultiband
from ...large.files.crops import CroppedImage
from ...large.files.image_source import ImageSource
from ...large.files.overview import overview
from ...large.files.validity import no_data, valid_area
from ...large.maps.detect import require_detector
from ...large.maps.objects import Objects
from ...large.maps.segment import require_segmentor
from ...large.tokens.normalized import NormalizedImage
from ...large.tokens.passes import Passes
from ...large.tokens.shards import Shards
from ...large.tokens.streamable import require_streamable
from ...large.tokens.workspace import GIB, Demand, Workspace, open_workspace
from ..fusion.fused_copy import in_dtype
from ..results import Detections, Heights, Segmentation
from .large_predictions import (
    PICTURE_SIDE,
    LargeDetections,
    LargeHeights,
    LargePrediction,
    LargeSegmentation,
)
from .open_scene import Image, Scene, SceneOptions, open_scene
from .slices import detect_slices, label_slices, slices_of
from .streamed_results import bytes_of_pixel, demand_of, in_frame, label_dtype, results_of

MIN_SLICE = 32  # pixels
MAX_BATCH, BATCH_PIXELS = 8, 2**19  # of slices; more take more memory, and little less time
# The options that determine a prediction; all processes need the same.
COMPARED = (
    *('score_thr', 'with_scores', 'probabilities', 'statistics_window', 'positions'),
    *('nodata', 'level', 'resolution', 'region', 'mask', 'tissue', 'value_range'),
)
CHOICES = dict(probabilities=(None, 'uint8', 'float16'), positions=('scene', 'data'))


class Predictor(Protocol):
    """What predictions need of a model, such as :class:`xcit_mm.predict.Model`."""

    task: str
    classes: tuple[str, ...]
    palette: tuple[tuple[int, int, int], ...]
    module: nn.Module
    pipeline: Compose
    bands: LoadMultiband | None
    dtype: torch.dtype  # of slices
    streamed_dtype: torch.dtype  # of an image that is predicted as a whole

    def read(self, image: str | Path) -> np.ndarray: ...
    def prepare(self, image: np.ndarray) -> Any: ...
    def predict_batch(
        self, images: Sequence[Any]
    ) -> Sequence[Detections | Heights | Segmentation]: ...
    def at_own_size(self) -> 'Predictor': ...


@dataclass(frozen=True)
class LargeOptions(SceneOptions):
    """How an image that does not fit into memory is predicted; see also :class:`.SceneOptions`.

    Attributes:
        memory: Bytes, or a text such as '2GiB', that the tokens, the labels and a tile may take in
            memory. If they need more, tokens and labels are stored in files in ``store``. Default:
            half of the free memory, divided by the number of processes on this machine.
        store: A folder for these files, and for what is finished of ``sliced`` predictions. If a
            call was killed, the next one continues there.
        score_thr: The lowest score of objects.
        with_scores: Whether a segmentor returns the probabilities of the labels as well.
        probabilities: 'uint8' (255 is 1) or 'float16' if a segmentor returns the probabilities of
            all classes as well.
        statistics_window: Side of a window in pixels. The attention statistics of a tile are
            computed in this window around the tile instead of over the whole image.
        sliced: Side of slices in pixels, which the model predicts one by one. This works with any
            detector and segmentor.
        overlap: Pixels that neighboring slices share.
        positions: 'data' encodes the positions of the patches relative to the smallest window that
            holds all pixels with data, so that the prediction is the same whatever surrounds this
            window. 'scene' encodes them relative to the whole image, as in training on whole
            images.
        batch_size: The number of slices that go through the model together. Default: as many as
            have 2^19 pixels together, at least 1 and at most 8.

    Raises:
        ArgumentError: If a value is invalid, or does not fit the others.
    """

    memory: int | str | None = None
    store: str | Path | None = None
    score_thr: float = 0.0
    with_scores: bool = False
    statistics_window: int | None = None
    sliced: int | None = None
    overlap: int = 128
    probabilities: str | None = None
    positions: str = 'data'
    batch_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.memory, str):
            try:
                object.__setattr__(self, 'memory', bytes_of(self.memory))
            except ValueError as error:
                raise ArgumentError(f'memory={self.memory!r}: {error}') from None
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                named = ' or '.join(repr(choice) for choice in choices if choice)
                raise ArgumentError(f'{name}={getattr(self, name)!r} is not {named}')
        window, side, overlap = self.statistics_window, self.sliced, self.overlap
        if window is not None and window < 1:
            raise ArgumentError(f'statistics_window={window!r} is not a positive number of pixels')
        if self.batch_size is not None and self.batch_size < 1:
            raise ArgumentError(f'batch_size={self.batch_size!r} must be 1 or more')
        if not 0 <= self.score_thr <= 1:
            raise ArgumentError(f'score_thr={self.score_thr!r} must be between 0 and 1')
        if side is None:
            return
        if window is not None or self.with_scores or self.probabilities:
            raise ArgumentError(
                '--sliced cannot be combined with --statistics-window, --scores or --probabilities'
            )
        if side < MIN_SLICE or not 0 <= overlap < side:
            raise ArgumentError(
                f'slices of {side} pixels with an overlap of {overlap} are not possible: slices '
                f'need {MIN_SLICE} pixels or more, and the overlap has to be smaller'
            )

    @property
    def slices_together(self) -> int:
        """The number of slices that go through the model together."""
        return self.batch_size or max(1, min(MAX_BATCH, BATCH_PIXELS // self.sliced**2))


def predict_large(
    model: Predictor,
    image: Image,
    options: LargeOptions,
    progress: Progress = silent,
) -> LargePrediction | None:
    """Predict an image that does not fit into memory, at its own size.

    The attention extends over the whole image. Labels and heights equal the results of mmseg's mode
    'whole', and objects are found on maps of the whole image. Pixels without data get no label,
    hold no object, and do not enter the attention. If ``torch.distributed`` is initialized, the
    processes share the image, and all of them have to call this function. An error of one of them
    is raised in all.

    Args:
        model: A model, such as :func:`xcit_mm.load_model` returns it.
        image: The path of a TIFF file (BigTIFF, GeoTIFF, COG), a whole slide, a NumPy file or any
            other image; a list of such paths, the tiles of one image; or an array (H, W, channels)
            such as a memory map.
        options: See :class:`LargeOptions`.
        progress: The display of the progress.

    Returns:
        The prediction on the first process, a :class:`.LargeDetections`, :class:`.LargeHeights` or
        :class:`.LargeSegmentation`, and None on the others.

    Raises:
        UserError: If the image, the model or the store cannot be used, or if the tokens do not fit
            into ``memory`` and ``store`` is None.
        ProcessesError: If the processes do not share the image, the model, the options and the
            versions of the packages, or if one of them has ended.
    """
    group = cpu_group()
    with together(group):
        check_options(model, options)
        used = 3 if model.bands is None else None  # of an RGB image
        scene = open_scene(image, model.read, used, options)
        source = scene.source
        pixels = _normalized(model, source)
        if group is not None:
            content = dict(size=source.shape, content=source.content())
            values = {f'the {name} of the image': value for name, value in content.items()}
            require_same(described(model, options) | values, group, source.name)
        for note in (*scene.notes, *pixels.notes):
            progress.report(note)
        area, predicted = whole(pixels.size), pixels
        if options.positions == 'data' and source.has_gaps:
            area, is_complete = valid_area(source, progress)
            if not all(area.size):
                raise no_data(source.name)
            predicted = _normalized(model, CroppedImage(source, area, is_complete))
        predict = _streamed if options.sliced is None else _sliced
        found, workspace = predict(model, predicted, pixels.size, options, progress)
        with _finished(workspace, source):
            if found is not None:
                if model.task != 'detection' and area != whole(pixels.size):
                    found = in_frame(found, area, pixels.size, workspace)
                picture = overview(pixels.size, pixels.pixels, PICTURE_SIDE, pixels.max_rows)
        if found is None:
            return None
    picture = picture if pixels.bands is None else pixels.bands.picture(picture)
    return _result(model, scene, found, area, image=picture, workspace=workspace)


def _normalized(model: Predictor, source: ImageSource) -> NormalizedImage:
    preprocessor, transforms = model.module.data_preprocessor, model.pipeline.transforms[1:]
    return NormalizedImage(source, preprocessor, transforms, model.bands)


def _result(
    model: Predictor, scene: Scene, found: dict[str, Any], area: Window, **common: Any
) -> LargeDetections | LargeHeights | LargeSegmentation:
    """Return what was found in the ``area`` of a scene as a prediction for the full image."""
    common |= dict(window=scene.window)
    place = dict(size=scene.source.shape[:2], georeference=scene.georeference)
    if model.task == 'heights':
        return LargeHeights(**common, **place, values=found['heights'])
    common |= dict(classes=model.classes, palette=model.palette)
    if model.task == 'segmentation':
        if 'probabilities' in found:
            found['probabilities'] = np.moveaxis(found['probabilities'], 2, 0)
        place['pixel_size'] = scene.source.pixel_size
        return LargeSegmentation(**common, **place, **found)
    starts = zip(scene.corner, area, scene.scale, strict=True)
    corner = [start + span.start * k for start, span, k in starts]
    objects = Objects(**found).placed(corner, scene.scale, scene.full_size)
    place = dict(size=scene.full_size, georeference=scene.full_georeference)
    return LargeDetections(**common, **place, **vars(objects))


@contextmanager
def _finished(workspace: Workspace, source: ImageSource) -> Iterator[None]:
    """Remove a store after an error if the image has changed, otherwise release it."""
    try:
        try:
            yield
        except UserError:
            source.require_unchanged()  # otherwise, this is the reason
            raise
        source.require_unchanged()
    except ChangedError:
        workspace.remove()  # it could not be continued
        raise
    except BaseException:
        workspace.release()
        raise


def described(model: Predictor, options: LargeOptions) -> dict[str, Any]:
    """Return what determines the prediction of an image, for :func:`.require_same`."""
    return {
        'the model (config and checkpoint)': _fingerprint(model),
        'dtype': model.streamed_dtype,
        **{name: getattr(options, name) for name in COMPARED},
        **versions(),
    }


def check_options(model: Predictor, options: LargeOptions) -> None:
    """Refuse options that do not fit the model, before an image is opened."""
    if model.task == 'panoptic':
        raise UserError('a panoptic model cannot predict large images: name another model')
    if (options.with_scores or options.probabilities) and model.task != 'segmentation':
        kind = 'a detector has' if model.task == 'detection' else 'heights have'
        raise ArgumentError(
            f'{kind} no probabilities of labels: leave out --scores (with_scores) and '
            '--probabilities'
        )
    if options.probabilities == 'float16':
        require('zarr')
    if options.sliced is None:
        require_streamable(model.module.backbone)
        accept = require_detector if model.task == 'detection' else require_segmentor
        accept(model.module)
    elif get_world_size() > 1:
        raise UserError('slices are predicted by a single process: leave out torchrun')


def _streamed(
    model: Predictor,
    pixels: NormalizedImage,
    size: tuple[int, int],
    options: LargeOptions,
    progress: Progress,
) -> tuple[dict[str, Any] | None, Workspace]:
    """Predict an image whose maps the backbone computes as a whole.

    ``size`` is (H, W) of the scene, of which ``pixels`` may be a window.

    Returns:
        What is found, on the first process (None on the others), and the place of it.
    """
    release_memory()  # before what is free is measured
    module = in_dtype(model.module, model.streamed_dtype)
    passes = Passes(module.backbone, pixels, statistics_window=options.statistics_window)
    made = _made(model, options)
    arguments = passes, made, model, pixels, size, options, progress
    passes.workspace = workspace = _workspace_for(*arguments)
    try:
        thr = options.score_thr
        found = results_of(module, passes, pixels.size, made, score_thr=thr, progress=progress)
    except BaseException:
        workspace.release()
        raise
    if found is None:
        workspace.remove()
    return found, workspace


def _workspace_for(
    passes: Passes,
    made: Mapping[str, torch.dtype],
    model: Predictor,
    pixels: NormalizedImage,
    size: tuple[int, int],
    options: LargeOptions,
    progress: Progress,
) -> Workspace:
    """Open the place of the tokens and labels of this process."""
    shards = passes.shards
    demand = demand_of(passes, pixels.size, bytes_of_pixel(made, len(model.classes)))
    if size != pixels.size and shards.rank == 0:
        of_scene = math.prod(size) * bytes_of_pixel(made, len(model.classes))
        demand = demand._replace(files=demand.files + of_scene)
    described = {name: str(dtype) for name, dtype in made.items()}
    settings = [passes.tile, passes.scale, str(passes.dtype), passes.statistics_window, described]
    identity = partial(_identity, model, pixels, settings)
    folder = Path(options.store, shards.part) if options.store else None
    workspace = open_workspace(demand, shards, options.memory, folder, identity)
    if shards.rank == 0:
        _report(workspace, demand.files, progress)
    return workspace


def _made(model: Predictor, options: LargeOptions) -> dict[str, torch.dtype]:
    """Return what is made for each pixel; see :func:`.label`."""
    if model.task == 'heights':
        return dict(heights=torch.float32)
    if model.task == 'detection':
        return {}
    made = dict(labels=label_dtype(len(model.classes)))
    if options.with_scores:
        made['scores'] = torch.uint8
    if options.probabilities is not None:
        made['probabilities'] = getattr(torch, options.probabilities)
    return made


def _sliced(
    model: Predictor,
    pixels: NormalizedImage,
    size: tuple[int, int],
    options: LargeOptions,
    progress: Progress,
) -> tuple[dict[str, Any], Workspace]:
    slices = slices_of(pixels.size, options.sliced, options.overlap)
    batch_size = options.slices_together
    made = _made(model, options)
    sizes = {pixels.size, size}  # the labels of the area are stored, and also the scene's
    needed = sum(map(math.prod, sizes)) * bytes_of_pixel(made, len(model.classes))
    if options.store:
        # Slices that go through the model together may round differently.
        settings = [options.sliced, options.overlap, options.score_thr, batch_size]
        settings.append(str(model.dtype))
        identity = _identity(model, pixels, settings)
        workspace = Workspace(Path(options.store, 'sliced'), identity, needed)
        _report(workspace, needed, progress)
    else:
        workspace = open_workspace(Demand(needed), Shards(pixels.size[0]), options.memory, None)
    at_own_size, common = model.at_own_size(), (batch_size, workspace, progress)
    try:
        if model.task == 'detection':
            found = detect_slices(at_own_size, pixels, slices, options.score_thr, *common)
            return vars(found), workspace
        ((name, dtype),) = made.items()
        values = label_slices(at_own_size, pixels, slices, name, dtype, *common)
    except BaseException:
        workspace.release()
        raise
    return {name: values.array()[..., 0]}, workspace


def _report(workspace: Workspace, needed: int, progress: Progress) -> None:
    """Tell where the stores are, and how much of a run that was killed is finished."""
    if workspace.folder is not None and needed:
        done = [f'{number} {stage} are finished' for stage, number in workspace.finished.items()]
        kept = f'{needed / GIB:.2f} GiB are kept in {workspace.folder}'
        progress.report('; '.join([kept, *done]))


def _identity(model: Predictor, pixels: NormalizedImage, settings: list) -> dict[str, Any]:
    """Return what has to be the same for a run to continue; see :class:`.Workspace`."""
    settings = [*settings, pixels.is_bgr]
    return dict(image=pixels.source.identity(), model=_fingerprint(model), settings=settings)


def _fingerprint(model: Predictor) -> str:
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
