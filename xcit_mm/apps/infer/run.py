"""Predictions for the inputs of a command line, whole or tile by tile."""

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ...base.device import dtype_name
from ...base.errors import UserError, printable
from ...base.processes import connected
from ...predict.large.large_options import LargeOptions
from ...predict.large.output_options import DEFAULT_OUTPUT, OutputOptions
from ...predict.large.predict_large import check_options
from ...predict.model import Model, load_model
from ...predict.results import SCORE_THR
from ...predict.sources import find_inputs, mosaic_name
from ...predict.write.written import Output, is_output, only_writer, require_kept
from .tiled import predict_tiled, share_tiles, too_large, unlike_training
from .whole import changed_values, lost_places, predict_whole

DEFAULT = LargeOptions(score_thr=SCORE_THR)
WHOLE = 'score_thr', 'batch_size'  # of all images
LOOKED_AT = 20  # images that are opened before the first prediction


class Inferred(NamedTuple):
    """What a call has predicted.

    Attributes:
        images: The number of images and frames.
        problems: A sentence on each of those that could not be predicted.
        objects: The number of objects of each class; None for a model without objects, and in the
            processes that do not write.
    """

    images: int
    problems: list[str]
    objects: Counter | None


def infer(
    config: str | Path,
    checkpoint: str | Path,
    inputs: Sequence[str],
    out: str | Path,
    stream: bool = False,
    large: LargeOptions = DEFAULT,
    written: OutputOptions = DEFAULT_OUTPUT,
    mosaic: bool = False,
    **loading: Any,
) -> Inferred:
    """Predict images and videos, and write the predictions and pictures of them to a folder.

    Args:
        config: The config of the model; see :func:`xcit_mm.load_model`.
        checkpoint: The weights of the model.
        inputs: Images, folders, patterns, URLs and videos.
        out: The folder of the predictions.
        stream: Whether to predict all images tile by tile or in slices, and not only those that do
            not fit into memory.
        large: How these images are predicted. Other images use its scores and its batch size.
        written: How the predictions for these images are written.
        mosaic: Whether the inputs are the tiles of one image.
        loading: Further arguments of :func:`xcit_mm.load_model`.

    Returns:
        What was predicted. Images that were not are also named on the console.

    Raises:
        UserError: If nothing can be predicted.
    """
    out = Path(out)
    sources, problems, notes = find_inputs(inputs, partial(is_output, folder=out))
    if not sources:
        raise UserError('; '.join(problems))
    require_kept(sources.values(), out)
    if mosaic:
        sources = {mosaic_name(inputs[0]): [*sources.values()]}
    model = load_model(config, checkpoint, **loading)
    tiled = sources if stream else too_large(model, sources) if loading.get('full_size') else {}
    with connected() if stream else nullcontext():
        if stream:
            check_options(model, large)
            written.require_packages()
        if (number := share_tiles(model, tiled, out, large)) is not None:
            return Inferred(number, [], None)
        whole = {name: source for name, source in sources.items() if name not in tiled}
        dtype = dtype_name(model.streamed_dtype if stream else model.dtype)
        notes += [*problems, *_remarks(model, whole.values())]
        notes += islice(unlike_training(model, islice(tiled.values(), LOOKED_AT), large), 1)
        _announce(dtype, loading.get('compiled', False), notes)
        info = dict(config=str(config), checkpoint=str(checkpoint), dtype=dtype)
        options = _chosen(large) | _chosen(written) | (dict(mosaic=True) if mosaic else {})
        output = Output(out, model, info | (dict(options=options) if options else {}), written)
        parts = [(0, problems)]
        with only_writer(out), output:
            if whole:
                batch_size = large.batch_size or 1
                parts.append(predict_whole(model, whole, output, batch_size, large.score_thr))
            if tiled:
                parts.append(predict_tiled(model, tiled, output, out, large))
    done, problems = sum(done for done, _ in parts), [p for _, part in parts for p in part]
    return Inferred(done, problems, output.objects)


def _remarks(model: Model, images: Collection[str]) -> Iterator[str]:
    """Yield what predictions of whole images lose, each time for the first image concerned."""
    yield from islice(lost_places(images), 1)
    if model.bands is None:
        first = islice(images, LOOKED_AT)
        yield from next(filter(None, map(changed_values, first)), [])


def _announce(dtype: str, compiled: bool, notes: Iterable[str]) -> None:
    """Say what a user should know before the first image."""
    wait = ' torch.compile takes a minute or two at the first image.' if compiled else ''
    lines = [f'The model computes in {dtype}.{wait}', *map(printable, notes)]
    print(*lines, sep='\n', file=sys.stderr, flush=True)


def _chosen(options: LargeOptions | OutputOptions) -> dict[str, Any]:
    """Return the options that differ from their defaults, for the JSON file of the predictions."""
    chosen = {f.name: getattr(options, f.name) for f in fields(options)}
    chosen = {f.name: chosen[f.name] for f in fields(options) if chosen[f.name] != f.default}
    return {k: str(v) if isinstance(v, Path) else v for k, v in chosen.items() if k not in WHOLE}
