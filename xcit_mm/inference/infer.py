"""Predict whatever is named on a command line: what tools/infer.py calls."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import ArgumentError, UserError, reason
from ..files import DISK_FULL
from .detections import Detections
from .frames import Frame, batches, read_frames
from .model import Model, load_model
from .output import Output
from .progress import ImageProgress
from .segmentation import Segmentation
from .sources import find_inputs

SCORE_THR = 0.3  # detections with a lower score are neither drawn nor written


@dataclass(frozen=True)
class Outcome:
    """What became of the inputs.

    Attributes:
        done: The number of images, and frames of videos, that were predicted.
        problems: A sentence on each input that could not be.
        places: What was written and where, by a word.
    """

    done: int
    problems: list[str]
    places: dict[str, Path]


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
) -> Outcome:
    """Predict images and videos, and write pictures of the predictions and the predictions.

    What cannot be read is named on the console, and the others go on.

    Args:
        config: As of :func:`load_model`.
        checkpoint: As of :func:`load_model`.
        inputs: Images, folders, patterns, URLs of images, and videos.
        out: The folder to write to.
        batch_size: Images that go through the model together.
        score_thr: Of the detections that are drawn and written; None: 0.3.
        full_size: As of :func:`load_model`.
        device: As of :func:`load_model`.
        trust_checkpoint: As of :func:`load_model`.
        options: As of :func:`load_model`.

    Raises:
        UserError: If no input is there, the folder cannot be written to, the model cannot be
            loaded, or a segmentor is given a score.
        ArgumentError: If a number is out of its range.
    """
    if batch_size < 1:
        raise ArgumentError(f'batch size {batch_size}: not a positive number')
    if score_thr is not None and not 0 <= score_thr <= 1:
        raise ArgumentError(f'score {score_thr}: not between 0 and 1')
    out = Path(out)
    found, problems = find_inputs(inputs, out)
    if not found:
        raise UserError('; '.join(problems))
    model = load_model(config, checkpoint, device, options, trust_checkpoint, full_size)
    if model.task != 'detection' and score_thr is not None:
        raise UserError(f'score {score_thr}: {config} is a segmentor, whose labels have no scores')
    info = dict(config=str(config), checkpoint=str(checkpoint))
    with ImageProgress() as progress, Output(out, model, info) as output:
        for problem in problems:
            progress.report(problem)
        progress.expect(len(found))
        for batch in batches(read_frames(found, progress), batch_size):
            _process(model, batch, SCORE_THR if score_thr is None else score_thr, output, progress)
    return Outcome(progress.done, progress.problems, output.places)


def _process(
    model: Model, batch: list[Frame], score_thr: float, output: Output, progress: ImageProgress
) -> None:
    """Predict and write a batch; on return nothing holds its masks, which are gigabytes."""
    for frame, prediction in _predict(model, batch, progress):
        if isinstance(prediction, Detections):
            prediction = prediction.above(score_thr)
        try:
            _write(frame, prediction, output)
            progress.count()
        except UserError as error:
            _give_up(str(error), progress)


def _write(frame: Frame, prediction: Detections | Segmentation, output: Output) -> None:
    """Only a full disk ends the run: it is so for the other images, too."""
    try:
        output.add(frame, prediction)
    except (OSError, MemoryError) as error:
        if getattr(error, 'errno', None) in DISK_FULL:
            raise
        raise UserError(
            f'{frame.input.source}: its prediction cannot be written ({reason(error)})'
        ) from None


def _predict(
    model: Model, batch: list[Frame], progress: ImageProgress
) -> Iterator[tuple[Frame, Detections | Segmentation]]:
    """The predictions of a batch; if it fails, of its images one by one."""
    try:
        yield from zip(batch, model.predict_batch([frame.image for frame in batch]), strict=True)
        return
    except UserError as error:
        problem = str(error)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        height, width = batch[0].image.shape[:2]
        problem = (
            f'{width}x{height} pixels need more memory than there is; let the model see fewer '
            '(no --full-size), or take a machine with more (--device cpu)'
        )
    if len(batch) > 1:
        for frame in batch:
            yield from _predict(model, [frame], progress)
        return
    _give_up(f'{batch[0].input.source}: {problem}', progress)


def _give_up(problem: str, progress: ImageProgress) -> None:
    progress.report(problem)
    progress.expect(-1)


def _is_out_of_memory(error: Exception) -> bool:
    kinds = (MemoryError, torch.cuda.OutOfMemoryError)
    return isinstance(error, kinds) or 'DefaultCPUAllocator' in str(error)
