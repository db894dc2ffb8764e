"""Predictions for the inputs of a command line, whole or tile by tile."""

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from ...base.device import dtype_name
from ...base.environment import require
from ...base.errors import (
    ArgumentError,
    MissingOperatorError,
    ProcessesError,
    UserError,
    is_out_of_memory,
    printable,
    reason,
)
from ...base.files import is_disk_full
from ...base.free_memory import free_memory
from ...base.processes import connected, require_same
from ...base.progress import ImageProgress, TileProgress
from ...base.threads import Behind, ahead
from ...data.tiff.places import NOWHERE, incomplete, place_of_file
from ...large.files.open_image import image_size
from ...network.weights.cache import is_url
from ...predict.large.large_predictions import LargePrediction
from ...predict.large.output_options import OutputOptions
from ...predict.large.predict_large import LargeOptions, check_options, described, predict_large
from ...predict.model import Model, Prediction, load_model
from ...predict.results import SCORE_THR, Detections
from ...predict.sources import (
    MAX_PIXELS,
    Frame,
    batches,
    find_inputs,
    mosaic_name,
    read_frames,
)
from ...predict.write.written import STORE, Output, is_output, only_writer, require_kept
from .summary import Predicted, in_few_words, print_summary

# Bytes of each pixel and channel of a backbone that a prediction takes: 6.5 to 8.6 GiB for 24
# megapixels and 384 channels (docs/inference.md).
BYTES_OF_PIXEL = 1
# Options whose names differ from the names of their fields.
OPTIONS = dict(with_scores='scores', value_range='range')
WITHOUT_PLACE = (
    '{} has a place on a map, which the predictions lose: add --stream to keep it (or --sliced)'
)
NOT_WRITTEN = '{}: its prediction cannot be written ({}): check the folder --out'


def infer(
    config: str | Path,
    checkpoint: str | Path,
    inputs: Sequence[str],
    out: str | Path,
    batch_size: int | None = None,
    score_thr: float | None = None,
    stream: bool = False,
    large: Mapping[str, Any] | None = None,
    written: Mapping[str, Any] | None = None,
    mosaic: bool = False,
    **loading: Any,
) -> tuple[int, list[str]]:
    """Predict images and videos, and write the predictions and pictures of them to a folder.

    The arguments are the options of tools/infer.py: ``large`` has fields of :class:`.LargeOptions`,
    ``written`` fields of :class:`.OutputOptions`, and ``loading`` further arguments of
    :func:`xcit_mm.load_model`. With ``mosaic``, the inputs are the tiles of one scene. Returns the
    number of images and frames that were predicted, and a sentence on each of the others, which are
    also named on the console. Raises a UserError if nothing can be predicted.
    """
    if batch_size is not None and batch_size < 1:
        raise ArgumentError(f'batch size {batch_size}: not a positive number')
    if score_thr is not None and not 0 <= score_thr <= 1:
        raise ArgumentError(f'score {score_thr}: not between 0 and 1')
    full_size, compiled = (loading.get(name, False) for name in ('full_size', 'compiled'))
    given = {**(large or {}), **(written or {}), **(dict(mosaic=True) if mosaic else {})}
    _require_effect(given, stream, full_size, compiled)
    outputs = OutputOptions(**written or {})
    lowest = SCORE_THR if score_thr is None else score_thr
    tiling = LargeOptions(**large or {}, score_thr=lowest, batch_size=batch_size)
    out = Path(out)
    sources, problems, notes = find_inputs(inputs, partial(is_output, folder=out))
    if not sources:
        raise UserError('; '.join(problems))
    require_kept(sources.values(), out)
    if mosaic:
        sources = {mosaic_name(inputs[0]): [*sources.values()]}
    model = load_model(config, checkpoint, **loading)
    if model.task != 'detection' and score_thr is not None:
        what = 'heights' if model.task == 'heights' else 'labels'
        raise UserError(
            f'score {score_thr}: {config} predicts {what} without scores; omit --score-thr'
        )
    if stream:
        if tiling.probabilities == 'float16':
            require('zarr')
        check_options(model, tiling)
        outputs.require_effect(model.task)
    tiled = sources if stream else _too_large(model, sources) if full_size else {}
    whole = {name: source for name, source in sources.items() if name not in tiled}
    dtype = dtype_name(model.streamed_dtype if stream else model.dtype)
    info = dict(config=str(config), checkpoint=str(checkpoint), dtype=dtype)
    if given:
        info['options'] = {k: str(v) if isinstance(v, Path) else v for k, v in given.items()}
    output = Output(out, model, info, outputs)
    with connected() if stream else nullcontext(False) as are_many:
        if are_many:
            check_options(model, tiling)  # slices have no processes
            names = {f'input {number}': name for number, name in enumerate(tiled, 1)}
            require_same(described(model, tiling) | names)
            if torch.distributed.get_rank():  # the first process shows the progress and writes
                return len([*_predict_tiled(model, tiled, tiling, out, TileProgress())]), []
        wait = ' torch.compile takes a minute or two at the first image.' if compiled else ''
        said = [f'The model computes in {dtype}.{wait}', *map(printable, [*notes, *problems])]
        said += map(printable, islice(_lost_places(whole.values()), 1))
        print(*said, sep='\n', file=sys.stderr, flush=True)
        with only_writer(out), output:
            parts = [(0, problems)]
            if whole:
                parts.append(_infer_whole(model, whole, output, batch_size or 1, tiling.score_thr))
            if tiled:
                parts.append(_infer_tiled(model, tiled, output, out, tiling))
    return sum(done for done, _ in parts), [problem for _, part in parts for problem in part]


def _lost_places(images: Iterable[str]) -> Iterator[str]:
    """Yield a sentence on each image with a place on a map, which whole predictions lose."""
    for image in images:
        with suppress(UserError):  # reported when the image is predicted
            place = NOWHERE if is_url(image) else place_of_file(Path(image))
            if place.transform is not None:
                yield WITHOUT_PLACE.format(image)
            yield from incomplete(image, place)


def _require_effect(
    large: Mapping[str, Any], stream: bool, full_size: bool, compiled: bool
) -> None:
    """Refuse options that would have no effect."""
    if stream and compiled:
        raise ArgumentError('--compile: no model that streams images is compiled; leave it out')
    if 'overlap' in large and 'sliced' not in large:
        raise ArgumentError('--overlap is for slices: add --sliced, or leave it out')
    ignored = [] if stream else sorted(large.keys() - (('memory', 'store') if full_size else ()))
    if ignored:
        names = [f'--{OPTIONS.get(name, name).replace("_", "-")}' for name in ignored]
        raise ArgumentError(
            f'{" and ".join(names)}: only for large images; add --stream or --sliced'
        )


def _too_large(model: Model, sources: Mapping[str, str]) -> dict[str, str]:
    """Return the images that would not fit into memory, but can be predicted tile by tile."""
    try:
        check_options(model, LargeOptions())
    except UserError:
        return {}
    (channels,) = model.module.backbone.blocks[0].norm1.normalized_shape
    limit = free_memory() // (channels * BYTES_OF_PIXEL)
    return {n: s for n, s in sources.items() if math.prod(image_size(s) or (0,)) > limit}


def _infer_tiled(
    model: Model, sources: Mapping[str, str], output: Output, out: Path, tiling: LargeOptions
) -> tuple[int, list[str]]:
    scenes, start = [], monotonic()
    with TileProgress() as progress:
        for source, name, prediction in _predict_tiled(model, sources, tiling, out, progress):
            try:
                output.add_large(source, name, prediction)
            except (OSError, UnicodeError, UserError) as error:
                prediction.workspace.release()  # another run continues there
                if is_disk_full(error):
                    raise
                progress.give_up(NOT_WRITTEN.format(source, _why(error)))
            else:
                about = in_few_words(prediction), prediction.size, monotonic() - start
                scenes.append(Predicted(name, *about))
                prediction.workspace.remove()
            start = monotonic()
    for folder, _, _ in os.walk(out / STORE, topdown=False):
        with suppress(OSError):  # it holds unfinished images
            Path(folder).rmdir()
    if scenes:
        print_summary(scenes, len(progress.problems))
    return len(scenes), progress.problems


def _predict_tiled(
    model: Model,
    sources: Mapping[str, str],
    options: LargeOptions,
    out: Path,
    progress: TileProgress,
) -> Iterator[tuple[str, str, LargePrediction | None]]:
    """Predict images tile by tile, and report those that cannot be."""
    for name, scene in sources.items():
        store = Path(options.store or out / STORE, name)
        source = scene if isinstance(scene, str) else ', '.join(scene)
        try:
            prediction = predict_large(model, scene, replace(options, store=store), progress)
        except ProcessesError:
            raise
        except (OSError, UserError) as error:  # all processes raise the same UserError
            are_many = torch.distributed.is_initialized()
            if not isinstance(error, UserError) and (are_many or is_disk_full(error)):
                raise
            why = _why(error)
            progress.give_up(why if source in why else f'{source}: {why}')
            continue
        yield source, name, prediction


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else reason(error)


def _infer_whole(
    model: Model, sources: Mapping[str, str], output: Output, batch_size: int, score_thr: float
) -> tuple[int, list[str]]:
    """Predict images and videos that fit into memory, and write the predictions.

    Each batch is predicted while the next one is read and the previous predictions are written.
    """
    with ImageProgress() as progress:
        progress.expect(len(sources))
        frames = _prepared(model, read_frames(sources, progress, model.read))
        write = partial(_write, output, progress, score_thr)
        with closing(ahead(batches(frames, batch_size))) as read, Behind(write) as written:
            for batch in read:
                written.wait(len(batch), MAX_PIXELS - sum(frame.pixels for frame in batch))
                for frame, prediction in _predict(model, batch, written, progress):
                    written(frame, prediction, size=frame.pixels)
                    del prediction  # its masks can take gigabytes
    return progress.done, progress.problems


def _prepared(model: Model, frames: Iterable[Frame]) -> Iterator[Frame]:
    """Prepare frames. Where that fails, the model tries again later, and raises the error."""
    for frame in frames:
        with suppress(Exception):
            frame = frame._replace(prepared=model.prepare(frame.image))
        yield frame


def _write(
    output: Output,
    progress: ImageProgress,
    score_thr: float,
    frame: Frame,
    prediction: Prediction,
) -> None:
    """Write a prediction, or report why it cannot be written."""
    try:
        if isinstance(prediction, Detections):
            prediction = prediction.above(score_thr)
        output.add(frame, prediction)
        progress.count()
    except (OSError, MemoryError, UserError) as error:
        if is_disk_full(error):  # the other images would fail as well
            raise
        progress.give_up(NOT_WRITTEN.format(frame.source, _why(error)))


def _predict(
    model: Model, batch: list[Frame], written: Behind, progress: ImageProgress
) -> Iterator[tuple[Frame, Prediction]]:
    """Predict a batch; if that fails, predict its images one by one."""
    try:
        images = [frame.prepared or frame.image for frame in batch]
        yield from zip(batch, model.predict_batch(images), strict=True)
        return
    except MissingOperatorError:  # every image would fail
        raise
    except UserError as error:
        problem = str(error)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        height, width = batch[0].image.shape[:2]
        problem = (
            f'{width}x{height} pixels do not fit into the memory; predict them tile by tile '
            '(--stream), or reduce them to the size of the config (no --full-size)'
        )
    # Once the previous predictions are written, there may be enough memory for the image.
    if len(batch) == 1 and not written.wait():
        progress.give_up(f'{batch[0].source}: {problem}')
        return
    for frame in batch:
        yield from _predict(model, [frame], written, progress)
