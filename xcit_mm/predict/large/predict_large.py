"""Prediction of an image that does not fit into memory, as a whole or in slices."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_world_size

from ...base.device import release_memory
from ...base.environment import require, versions
from ...base.errors import ChangedError, UserError
from ...base.geometry import Window, whole
from ...base.processes import all_processes, cpu_group, digest_of_module, require_same
from ...base.progress import Progress, silent
from ...large.files.image_source import ImageSource
from ...large.files.image_views import CroppedImage
from ...large.files.normalized_image import NormalizedImage
from ...large.files.overview import overview
from ...large.files.validity import no_data, valid_area
from ...large.maps.known_models import require_detector, require_segmentor
from ...large.maps.objects import Objects
from ...large.tokens.passes import Passes
from ...large.tokens.shards import Shards
from ...large.tokens.streamable import require_streamable
from ...large.tokens.workspace import GIB, Demand, Workspace, open_workspace
from ..fusion.fused_copy import in_dtype
from .large_options import LargeOptions
from .large_predictions import (
    PICTURE_SIDE,
    LargeDetections,
    LargeHeights,
    LargePrediction,
    LargeSegmentation,
)
from .open_scene import Image, Scene, open_scene
from .slices import Predictor, Slices, slices_of
from .streamed_results import bytes_of_pixel, in_frame, label_dtype, memory_needed, results_of

NOT_COMPARED = 'memory', 'store'  # the options that may differ between processes


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
    with all_processes(group):
        check_options(model, options)
        scene = open_scene(image, model.read, 3 if model.bands is None else None, options)
        if group is not None:
            about = {'the size of the image': scene.source.shape}
            about |= {'the content of the image': scene.source.content()}
            require_same(described(model, options) | about, group, scene.source.name)
        run = _prepared(model, scene, options, progress)
        outputs, workspace = _streamed(run) if options.sliced is None else _sliced(run)
        with _finished(workspace, scene.source):
            if outputs is not None:
                if run.outputs and run.area != whole(run.image.size):
                    outputs = in_frame(outputs, run.area, run.image.size, workspace)
                picture = run.picture()
    if outputs is None:
        return None
    return _result(run, outputs, image=picture, workspace=workspace)


def check_options(model: Predictor, options: LargeOptions) -> None:
    """Refuse a model that cannot be predicted in this way, before an image is opened."""
    if model.task == 'panoptic':
        raise UserError('a panoptic model cannot predict large images: name another model')
    if options.probabilities == 'float16':
        require('zarr')
    if options.sliced is None:
        require_streamable(model.module.backbone)
        accept = require_detector if model.task == 'detection' else require_segmentor
        accept(model.module)
    elif get_world_size() > 1:
        raise UserError('slices are predicted by a single process: leave out torchrun')


def described(model: Predictor, options: LargeOptions) -> dict[str, Any]:
    """Return what determines the prediction of an image, for :func:`require_same`."""
    names = [field.name for field in fields(options) if field.name not in NOT_COMPARED]
    return {
        'the model (config and checkpoint)': _fingerprint(model),
        'dtype': model.streamed_dtype,
        **{name: getattr(options, name) for name in names},
        **versions(),
    }


@dataclass(frozen=True)
class _Run:
    """The prediction of a scene by a model.

    Attributes:
        image: The scene as the input of the model.
        area: The window of the scene that the model sees.
        pixels: The pixels of the area.
    """

    model: Predictor
    scene: Scene
    options: LargeOptions
    progress: Progress
    image: NormalizedImage
    area: Window
    pixels: NormalizedImage

    @property
    def outputs(self) -> dict[str, torch.dtype]:
        """What is computed for each pixel, and in which dtype; see :func:`.label`."""
        if self.model.task == 'detection':
            return {}
        if self.model.task == 'heights':
            return dict(heights=torch.float32)
        outputs = dict(labels=label_dtype(len(self.model.classes)))
        if self.options.with_scores:
            outputs['scores'] = torch.uint8
        if self.options.probabilities is not None:
            outputs['probabilities'] = getattr(torch, self.options.probabilities)
        return outputs

    @property
    def bytes_of_pixel(self) -> int:
        return bytes_of_pixel(self.outputs, len(self.model.classes))

    def picture(self) -> np.ndarray:
        """Return the scene as a small RGB picture."""
        image = self.image
        picture = overview(image.size, image.pixels, PICTURE_SIDE, image.max_rows)
        return picture if image.bands is None else image.bands.picture(picture)

    def identity(self, settings: list) -> dict[str, Any]:
        """Return what has to be the same for a run to continue; see :class:`.Workspace`."""
        image, model = self.pixels.source.identity(), _fingerprint(self.model)
        return dict(image=image, model=model, settings=[*settings, self.pixels.is_bgr])

    def report(self, workspace: Workspace, needed: int) -> None:
        """Tell where the stores are, and how much of a run that was killed is finished."""
        if workspace.folder is not None and needed:
            done = [f'; {n} {stage} are finished' for stage, n in workspace.finished.items()]
            stored = f'{needed / GIB:.2f} GiB of unfinished work are in {workspace.folder}'
            self.progress.report(stored + ', until the image is written' + ''.join(done))


def _prepared(model: Predictor, scene: Scene, options: LargeOptions, progress: Progress) -> _Run:
    """Find the pixels that the model sees."""

    def normalized(source: ImageSource) -> NormalizedImage:
        preprocessor, transforms = model.module.data_preprocessor, model.pipeline.transforms[1:]
        return NormalizedImage(source, preprocessor, transforms, model.bands)

    source, image = scene.source, normalized(scene.source)
    for note in (*scene.notes, *image.notes):
        progress.report(note)
    area, pixels = whole(image.size), image
    if options.positions == 'data' and source.has_gaps:
        area, is_complete = valid_area(source, progress)
        if not all(area.size):
            raise no_data(source.name)
        pixels = normalized(CroppedImage(source, area, is_complete))
    return _Run(model, scene, options, progress, image, area, pixels)


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


def _streamed(run: _Run) -> tuple[dict[str, Any] | None, Workspace]:
    """Predict an image whose maps the backbone computes as a whole.

    Returns:
        What the first process found (None on the others), and the place of it.
    """
    pixels, options = run.pixels, run.options
    release_memory()  # before what is free is measured
    module = in_dtype(run.model.module, run.model.streamed_dtype)
    passes = Passes(module.backbone, pixels, statistics_window=options.statistics_window)
    passes.workspace = workspace = _workspace(run, passes)
    try:
        outputs = results_of(
            module, passes, pixels.size, run.outputs, options.score_thr, run.progress
        )
    except BaseException:
        workspace.release()
        raise
    if outputs is None:
        workspace.remove()
    return outputs, workspace


def _workspace(run: _Run, passes: Passes) -> Workspace:
    """Open the place of the tokens and outputs of this process."""
    shards, size = passes.shards, run.pixels.size
    demand = memory_needed(passes, size, run.bytes_of_pixel)
    if size != run.image.size and shards.rank == 0:
        of_scene = math.prod(run.image.size) * run.bytes_of_pixel
        demand = demand._replace(files=demand.files + of_scene)
    outputs = {name: str(dtype) for name, dtype in run.outputs.items()}
    settings = [passes.tile, passes.scale, str(passes.dtype), passes.statistics_window, outputs]
    folder = Path(run.options.store, shards.part) if run.options.store else None
    identity = partial(run.identity, settings)
    workspace = open_workspace(demand, shards, run.options.memory, folder, identity)
    if shards.rank == 0:
        run.report(workspace, demand.files)
    return workspace


def _sliced(run: _Run) -> tuple[dict[str, Any], Workspace]:
    """Predict an image slice by slice."""
    model, pixels, options = run.model, run.pixels, run.options
    batch_size = options.slices_together
    windows = slices_of(pixels.size, options.sliced, options.overlap)
    sizes = {pixels.size, run.image.size}  # the labels of the area are stored, and also the scene's
    needed = sum(map(math.prod, sizes)) * run.bytes_of_pixel
    if options.store:
        # Slices that go through the model together may round differently.
        settings = [options.sliced, options.overlap, options.score_thr, batch_size]
        identity = run.identity([*settings, str(model.dtype)])
        workspace = Workspace(Path(options.store, 'sliced'), identity, needed)
        run.report(workspace, needed)
    else:
        workspace = open_workspace(Demand(needed), Shards(pixels.size[0]), options.memory, None)
    slices = Slices(model.at_own_size(), pixels, windows, batch_size, workspace, run.progress)
    try:
        if model.task == 'detection':
            return vars(slices.detect(options.score_thr)), workspace
        ((name, dtype),) = run.outputs.items()
        return {name: slices.label(name, dtype).array()[..., 0]}, workspace
    except BaseException:
        workspace.release()
        raise


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


def _result(run: _Run, outputs: dict[str, Any], **common: Any) -> LargePrediction:
    """Return the outputs as a prediction for the full image."""
    model, scene = run.model, run.scene
    common |= dict(window=scene.window)
    place = dict(size=scene.source.shape[:2], georeference=scene.georeference)
    if model.task == 'heights':
        return LargeHeights(**common, **place, values=outputs['heights'])
    common |= dict(classes=model.classes, palette=model.palette)
    if model.task == 'segmentation':
        if 'probabilities' in outputs:
            outputs['probabilities'] = np.moveaxis(outputs['probabilities'], 2, 0)
        place['pixel_size'] = scene.source.pixel_size
        return LargeSegmentation(**common, **place, **outputs)
    starts = zip(scene.corner, run.area, scene.scale, strict=True)
    corner = [start + span.start * k for start, span, k in starts]
    objects = Objects(**outputs).placed(corner, scene.scale, scene.full_size)
    place = dict(size=scene.full_size, georeference=scene.full_georeference)
    return LargeDetections(**common, **place, **vars(objects))
