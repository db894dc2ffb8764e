"""Predictions for images that do not fit into memory, tile by tile or in slices."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic

import torch

from ...base.errors import ProcessesError, UserError, reason
from ...base.files import is_disk_full
from ...base.free_memory import free_memory
from ...base.processes import require_same
from ...base.progress import TileProgress
from ...large.files.open_image import image_size
from ...predict.large.large_options import MIN_SLICE, LargeOptions
from ...predict.large.large_predictions import LargePrediction
from ...predict.large.predict_large import check_options, described, predict_large
from ...predict.model import Model
from ...predict.results.short_texts import size_text
from ...predict.write.written import STORE, Output
from .summary import Predicted, print_summary, summary
from .whole import NOT_WRITTEN

# Bytes of each pixel and channel of a backbone that a prediction takes: 6.5 to 8.6 GiB for 24
# megapixels and 384 channels (docs/predict.md).
BYTES_OF_PIXEL = 1

MUCH_LARGER = 4  # times the longer side of what a model was trained on

Sources = Mapping[str, str | Sequence[str]]  # by name: a path or URL, or those of an image's tiles


def too_large(model: Model, sources: Mapping[str, str]) -> dict[str, str]:
    """Return the images that would not fit into memory, but can be predicted tile by tile."""
    try:
        check_options(model, LargeOptions())
    except UserError:
        return {}
    (channels,) = model.module.backbone.blocks[0].norm1.normalized_shape
    limit = free_memory() // (channels * BYTES_OF_PIXEL)
    return {n: s for n, s in sources.items() if math.prod(image_size(s) or (0,)) > limit}


def unlike_training(
    model: Model, images: Iterable[str | Sequence[str]], options: LargeOptions
) -> Iterator[str]:
    """Yield a sentence on each image that is much larger than those that the model was trained on.

    There is none if slices, a window of statistics, a part or another resolution is chosen.
    """
    chosen = options.sliced, options.statistics_window
    read = options.region, options.level, options.resolution
    if model.trained_size is None or any((*chosen, *read)):
        return
    longer = max(model.trained_size)
    for image in images:
        size = image_size(image) if isinstance(image, str) else None
        if size is not None and max(size) >= MUCH_LARGER * longer:
            yield (
                f'{image} has {size_text(size)} pixels, but the model was trained on '
                f'{size_text(model.trained_size[::-1])} pixels: check on a labeled part whether '
                f'--sliced {max(longer, MIN_SLICE)} --overlap 0 is more accurate '
                '(docs/large_images.md)'
            )


def predict_tiled(
    model: Model, sources: Sources, output: Output, out: Path, options: LargeOptions
) -> tuple[int, list[str]]:
    """Predict images tile by tile, and write the predictions; see :func:`.predict_whole`."""
    scenes, start = [], monotonic()
    with TileProgress() as progress:
        for source, name, prediction in _predictions(model, sources, options, out, progress):
            try:
                output.add_large(source, name, prediction)
            except (OSError, UnicodeError, UserError) as error:
                prediction.workspace.release()  # another run continues there
                if is_disk_full(error):
                    raise
                progress.give_up(NOT_WRITTEN.format(source, reason(error)))
            else:
                about = summary(prediction), prediction.size, monotonic() - start
                scenes.append(Predicted(name, *about))
                prediction.workspace.remove()
            start = monotonic()
    for folder, _, _ in os.walk(out / STORE, topdown=False):
        with suppress(OSError):  # it holds unfinished images
            Path(folder).rmdir()
    if scenes:
        print_summary(scenes, len(progress.problems))
    return len(scenes), progress.problems


def share_tiles(model: Model, sources: Sources, out: Path, options: LargeOptions) -> int | None:
    """Compute a process's part of the images, if it is not the first one, which writes them.

    Returns:
        The number of images, or None on the first process.

    Raises:
        ProcessesError: If the processes do not have the same images, model and options.
    """
    if not torch.distributed.is_initialized():
        return None
    names = {f'input {number}': name for number, name in enumerate(sources, 1)}
    require_same(described(model, options) | names)
    if torch.distributed.get_rank() == 0:
        return None
    return len([*_predictions(model, sources, options, out, TileProgress())])


def _predictions(
    model: Model, sources: Sources, options: LargeOptions, out: Path, progress: TileProgress
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
            problem = reason(error)
            progress.give_up(problem if source in problem else f'{source}: {problem}')
            continue
        yield source, name, prediction
