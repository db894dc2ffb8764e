"""Predictions for images and videos that fit into memory."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from ...base.errors import MissingOperatorError, UserError, is_out_of_memory, reason
from ...base.files import is_disk_full, read_regular
from ...base.http import is_url
from ...base.progress import ImageProgress
from ...base.threads import BackgroundWriter, prefetch
from ...data.tiff.places import NOWHERE, incomplete, place_of_file
from ...data.tiff.tiff_bands import color_bands, opened_tiff
from ...data.transforms.decode import rgb_notes
from ...predict.model import Model, Prediction
from ...predict.results import Detections
from ...predict.results.short_texts import size_text
from ...predict.sources import MAX_PIXELS, Frame, batches, read_frames
from ...predict.write.written import Output

TIFF_SUFFIXES = '.tif', '.tiff'
WITHOUT_PLACE = (
    '{} has a place on a map, which the predictions lose: add --stream or --sliced PIXELS to keep '
    'it'
)
REDUCED = (
    '{} loses details, because it is resized from {} to {} pixels: predict it at its own size with '
    '--full-size{}'
)
TILED = ', or tile by tile with --stream or --sliced PIXELS'
MUCH_SMALLER = 4  # times, along the longer side
NOT_WRITTEN = '{}: its prediction cannot be written ({}): check the folder --out'


def predict_whole(
    model: Model, sources: Mapping[str, str], output: Output, batch_size: int, score_thr: float
) -> tuple[int, list[str]]:
    """Predict images and videos that fit into memory, and write the predictions.

    Each batch is predicted while the next one is read and the previous predictions are written.
    Returns the number of images and frames, and a sentence on each of the others.
    """
    with ImageProgress() as progress:
        progress.expect(len(sources))
        frames = _prepared(model, read_frames(sources, progress, model.read), progress)
        write = partial(_write, output, progress, score_thr)
        with (
            closing(prefetch(batches(frames, batch_size))) as read,
            BackgroundWriter(write) as written,
        ):
            for batch in read:
                written.wait(len(batch), MAX_PIXELS - sum(frame.pixels for frame in batch))
                for frame, prediction in _predict(model, batch, written, progress):
                    written(frame, prediction, size=frame.pixels)
                    del prediction  # its masks can take gigabytes
    return progress.done, progress.problems


def lost_places(images: Iterable[str]) -> Iterator[str]:
    """Yield a sentence on each image with a place on a map, which whole predictions lose."""
    for image in images:
        with suppress(UserError):  # reported when the image is predicted
            place = NOWHERE if is_url(image) else place_of_file(Path(image))
            if place.transform is not None:
                yield WITHOUT_PLACE.format(image)
            yield from incomplete(image, place)


def changed_values(image: str) -> list[str]:
    """Return a sentence on each change by which a TIFF file becomes RGB of 8 bits."""
    path = Path(image)
    if is_url(image) or path.suffix.lower() not in TIFF_SUFFIXES:
        return []
    try:
        with opened_tiff(read_regular(path)) as (file, tags):
            bands = color_bands(image, file, tags)
            return rgb_notes(image, bands.channels, bands.max_value)
    except (OSError, UserError):  # reported when the image is predicted
        return []


def _prepared(model: Model, frames: Iterable[Frame], progress: ImageProgress) -> Iterator[Frame]:
    """Prepare frames, and report the first image that becomes much smaller.

    If a frame cannot be prepared, the model tries again later, and raises the error.
    """
    is_reported = False
    for frame in frames:
        with suppress(Exception):
            frame = frame._replace(prepared=model.prepare(frame.image))
        if not is_reported and frame.prepared is not None and frame.index is None:
            sizes = frame.image.shape[:2], frame.prepared.results['img'].shape[:2]
            if is_reported := max(sizes[0]) >= MUCH_SMALLER * max(sizes[1]):
                remedy = '' if model.task == 'panoptic' else TILED  # which cannot be tiled
                progress.report(REDUCED.format(frame.source, *map(size_text, sizes), remedy))
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
        progress.give_up(NOT_WRITTEN.format(frame.source, reason(error)))


def _predict(
    model: Model, batch: list[Frame], written: BackgroundWriter, progress: ImageProgress
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
