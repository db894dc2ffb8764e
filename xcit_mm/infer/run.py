"""Predict the inputs of a command line: what tools/infer.py calls."""

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..config.config_errors import config_errors
from ..config.load import load_config
from ..device import dtype_name
from ..environment import require
from ..errors import (
    ArgumentError,
    MissingOperatorError,
    ProcessesError,
    UserError,
    is_out_of_memory,
    reason,
)
from ..files import DISK_FULL
from ..inference.model import Model, load_model
from ..inference.sources import MAX_PIXELS, Frame, ImageProgress, batches, find_inputs, read_frames
from ..inference.written import STORE, Output, is_output, only_writer, require_kept
from ..large_images.free_memory import free_memory
from ..large_images.predict_large import LargeOptions, check_options, described, predict_large
from ..large_images.progress import Bar, Progress
from ..large_images.results import LargeDetections, LargeSegmentation
from ..large_images.window_files import image_size
from ..predictions import Detections, Segmentation
from ..processes import connected, require_same
from ..threads import Behind, ahead

# Bytes of each pixel and channel of a backbone that a prediction takes: 6.5 to 8.6 GiB for 24
# megapixels and 384 channels (docs/inference.md).
BYTES_OF_PIXEL = 1
NOT_WRITTEN = '{}: its prediction cannot be written ({}): check the folder --out'
SCORE_THR = 0.3  # detections with a lower score are neither drawn nor written


def infer(
    config: str | Path,
    checkpoint: str | Path,
    inputs: Sequence[str],
    out: str | Path,
    batch_size: int = 1,
    score_thr: float | None = None,
    full_size: bool = False,
    device: str | None = None,
    trust_checkpoint: bool = False,
    options: Mapping[str, Any] | None = None,
    stream: bool = False,
    large: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    compiled: bool = False,
) -> tuple[int, list[str]]:
    """Predict images and videos, and write the predictions and pictures of them to a folder.

    The arguments are those of tools/infer.py. Returns the number of images and frames that were
    predicted, and a sentence on each of the others, which are also named on the console. Raises a
    UserError if nothing can be predicted.
    """
    if batch_size < 1:
        raise ArgumentError(f'batch size {batch_size}: not a positive number')
    if score_thr is not None and not 0 <= score_thr <= 1:
        raise ArgumentError(f'score {score_thr}: not between 0 and 1')
    out = Path(out)
    sources, problems = find_inputs(inputs, partial(is_output, folder=out))
    if not sources:
        raise UserError('; '.join(problems))
    require_kept(sources.values(), out)
    if stream and compiled:
        raise ArgumentError('--compile: no model that streams images is compiled; leave it out')
    model = load_model(
        config, checkpoint, device, options, trust_checkpoint, full_size, dtype, compiled
    )
    if model.task != 'detection' and score_thr is not None:
        raise UserError(f'score {score_thr}: {config} predicts labels, which have no scores')
    score_thr = SCORE_THR if score_thr is None else score_thr
    given, large = large or {}, LargeOptions(**large or {}, score_thr=score_thr)
    if 'overlap' in given and large.sliced is None:
        raise ArgumentError('--overlap is for slices: add --sliced, or leave it out')
    if stream:
        require('rasterio')  # which writes the result
        check_options(model, large)
        sources, streamed = {}, sources
    elif ignored := sorted(given.keys() - (('memory', 'store') if full_size else ())):
        names = [f'--{name.removeprefix("with_").replace("_", "-")}' for name in ignored]
        raise ArgumentError(f'{" and ".join(names)}: only for large images; add --stream')
    else:
        streamed = _too_large(model, sources) if full_size else {}
        sources = {name: source for name, source in sources.items() if name not in streamed}
    dtype = dtype_name(model.streamed_dtype if stream else model.dtype)
    info = dict(config=str(config), checkpoint=str(checkpoint), dtype=dtype)
    done = 0
    with ExitStack() as stack:
        output = Output(out, model, info)
        # Wrong values of heads and of test_cfg show in the first image.
        cfg = load_config(config, options)
        stack.enter_context(config_errors(cfg, options, lambda: output.has_written))
        are_many = stream and stack.enter_context(connected())
        if are_many:
            check_options(model, large)
            names = {f'input {number}': name for number, name in enumerate(streamed, 1)}
            require_same(described(model, large) | names)
        if are_many and torch.distributed.get_rank():  # the first process writes for all
            bar = Bar([])  # which is not shown, but names what cannot be predicted
            return len([*_predict_large(model, streamed, large, out, bar)]), []
        wait = ' torch.compile takes a minute or two at the first image.' if compiled else ''
        print(f'The model computes in {dtype}.{wait}', file=sys.stderr, flush=True)
        stack.enter_context(only_writer(out))
        stack.enter_context(output)
        if sources or not streamed:
            with ImageProgress() as progress:
                for problem in problems:
                    progress.report(problem)
                progress.expect(len(sources))
                frames = _prepared(model, read_frames(sources, progress, model.read))
                write = partial(_write, output, progress, score_thr)
                _predict_all(model, batches(frames, batch_size), write, progress)
            done, problems = progress.done, progress.problems
        if streamed:
            bar = Bar(problems)
            with bar.display:
                for problem in [] if sources else problems:
                    bar.report(problem)
                for predicted in _predict_large(model, streamed, large, out, bar):
                    source, _, prediction = predicted
                    try:
                        output.add_large(*predicted)
                    except (OSError, UnicodeError) as error:
                        if getattr(error, 'errno', None) in DISK_FULL:
                            raise
                        prediction.workspace.release()  # another run continues there
                        bar.give_up(NOT_WRITTEN.format(source, reason(error)))
                    else:
                        prediction.workspace.remove()
                        done += 1
        for folder, _, _ in os.walk(out / STORE, topdown=False):
            with suppress(OSError):  # it holds unfinished images
                Path(folder).rmdir()
    return done, problems


def _too_large(model: Model, sources: Mapping[str, str]) -> dict[str, str]:
    """Return the images that would not fit into memory, but can be predicted tile by tile."""
    try:
        check_options(model, LargeOptions())
    except UserError:
        return {}
    (channels,) = model.module.backbone.blocks[0].norm1.normalized_shape
    limit = free_memory() // (channels * BYTES_OF_PIXEL)
    return {n: s for n, s in sources.items() if math.prod(image_size(s) or (0,)) > limit}


def _predict_large(
    model: Model,
    sources: Mapping[str, str],
    options: LargeOptions,
    out: Path,
    progress: Progress,
) -> Iterator[tuple[str, str, LargeDetections | LargeSegmentation | None]]:
    """Predict images tile by tile, and report those that cannot be."""
    for name, source in sources.items():
        store = Path(options.store or out / STORE, name)
        try:
            prediction = predict_large(model, source, replace(options, store=store), progress)
        except ProcessesError:
            raise
        except (OSError, UserError) as error:  # all processes raise the same UserError
            is_shared = isinstance(error, UserError)
            are_many = torch.distributed.is_initialized()
            if not is_shared and (are_many or getattr(error, 'errno', None) in DISK_FULL):
                raise
            why = str(error) if is_shared else reason(error)
            progress.give_up(why if source in why else f'{source}: {why}')
            continue
        yield source, name, prediction


def _prepared(model: Model, frames: Iterable[Frame]) -> Iterator[Frame]:
    """Prepare frames. Where that fails, the model tries again later, and raises the error."""
    for frame in frames:
        with suppress(Exception):
            frame = frame._replace(prepared=model.prepare(frame.image))
        yield frame


def _predict_all(
    model: Model,
    batches: Iterable[list[Frame]],
    write: Callable[[Frame, Detections | Segmentation], None],
    progress: ImageProgress,
) -> None:
    """Predict each batch while the next one is read and the previous predictions are written."""
    with closing(ahead(batches)) as read, Behind(write) as written:
        for batch in read:
            written.wait(len(batch), MAX_PIXELS - sum(frame.pixels for frame in batch))
            for frame, prediction in _predict(model, batch, written, progress):
                written(frame, prediction, size=frame.pixels)
                del prediction  # its masks can take gigabytes


def _write(
    output: Output,
    progress: ImageProgress,
    score_thr: float,
    frame: Frame,
    prediction: Detections | Segmentation,
) -> None:
    """Write a prediction, or report why it cannot be written."""
    try:
        if isinstance(prediction, Detections):
            prediction = prediction.above(score_thr)
        output.add(frame, prediction)
        progress.count()
    except (OSError, MemoryError, UserError) as error:
        if getattr(error, 'errno', None) in DISK_FULL:  # the other images would fail as well
            raise
        why = str(error) if isinstance(error, UserError) else reason(error)
        progress.give_up(NOT_WRITTEN.format(frame.source, why))


def _predict(
    model: Model, batch: list[Frame], written: Behind, progress: ImageProgress
) -> Iterator[tuple[Frame, Detections | Segmentation]]:
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
            '(--stream), or let the model see fewer pixels (no --full-size)'
        )
    # Once the previous predictions are written, there may be enough memory for the image.
    if len(batch) == 1 and not written.wait():
        progress.give_up(f'{batch[0].source}: {problem}')
        return
    for frame in batch:
        yield from _predict(model, [frame], written, progress)
