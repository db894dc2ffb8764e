"""Labels or heights of the pixels of an image of any size, tile by tile, as if of a whole image."""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...base.device import sent_back, trim_memory
from ...base.errors import UserError
from ...base.geometry import Window, tiles
from ...base.progress import Progress, silent
from ..tokens.passes import Passes
from ..tokens.token_files import CPU, TokenFile
from .lazy import LazyMap
from .no_label import no_label
from .resized_labels import bilinear, labels_of_resized
from .streamed_maps import Pyramid

MAX_TILE = 512  # pixels
MAX_SCORES = 2**24  # scores of a tile: 64 MiB
LABELS = 'rows of labels'  # the stage of a workspace


def predicts_heights(model: nn.Module) -> bool:
    """Return whether a model predicts a number for each pixel instead of a class."""
    return any(kind.__name__ == 'DepthEstimator' for kind in type(model).__mro__)


def has_unmodified_head(model: nn.Module) -> bool:
    """Return whether mmseg's own code computes labels or heights, only from the map of the head."""
    from mmseg.models.decode_heads.decode_head import BaseDecodeHead
    from mmseg.models.segmentors import DepthEstimator, EncoderDecoder

    from ...network.models.aligned_segmentors import AlignedDepthEstimator, AlignedEncoderDecoder

    aligned = AlignedEncoderDecoder, AlignedDepthEstimator
    if type(model) not in (*aligned, EncoderDecoder, DepthEstimator):
        return False
    head = type(model.decode_head)
    return (
        head.predict is BaseDecodeHead.predict
        and head.predict_by_feat is BaseDecodeHead.predict_by_feat
    )


def require_segmentor(model: nn.Module, remedy: str = 'use --sliced') -> None:
    """Refuse a segmentor whose labels depend on more than the maps of its head."""
    from ...network.models.aligned_segmentors import AlignedSegmentor

    if not (isinstance(model, AlignedSegmentor) and has_unmodified_head(model)):
        kind = type(getattr(model, 'decode_head', model)).__name__
        raise UserError(
            f'the model cannot be streamed: which pixels of its maps {kind} reads is not known; '
            f'{remedy}'
        )


@torch.inference_mode()
def label(
    model: nn.Module,
    passes: Passes,
    size: tuple[int, int],
    made: Mapping[str, torch.dtype],
    progress: Progress = silent,
) -> dict[str, TokenFile]:
    """Label the pixels of an image whose tokens are in the stores of ``passes``.

    The labels equal the labels of the mode 'whole'. A run that was killed continues after the
    last finished row of tiles. Pixels without data get :func:`.no_label`, and NaN, or 0 in uint8.

    Args:
        model: A segmentor that :func:`require_segmentor` accepts.
        passes: The passes over the image, which are finished.
        size: (H, W) of the image.
        made: What is computed, and in which dtype: 'heights' for a model that
            :func:`predicts_heights`, otherwise 'labels', possibly 'scores', the probabilities of
            the labels, and 'probabilities', the probabilities of all classes. In uint8, 255 is the
            probability 1.
        progress: The display of the progress.

    Returns:
        Stores with the rows of this process, ``shards.share(H)``: (rows, W, 1), or (rows, W,
        classes) for the probabilities.
    """
    pyramid = Pyramid(passes)
    maps = model.neck(pyramid.maps) if model.with_neck else pyramid.maps
    head, classes = model.decode_head, model.out_channels
    logits = head(maps)
    covered = pyramid.covered  # may reach beyond the image
    scores = F.interpolate(logits, covered, mode='bilinear', align_corners=model.align_corners)

    shards, workspace = passes.shards, passes.workspace
    rows = shards.share(size[0])
    read = logits if classes > 1 and [*made] == ['labels'] else scores
    pixels = passes.scale * MAX_SCORES // classes * math.prod(covered) // math.prod(read.shape[2:])
    side = max(32, min(MAX_TILE * math.isqrt(passes.scale), math.isqrt(pixels) // 32 * 32))
    of_rows = list(tiles(Window(rows, slice(0, size[1])), (side, size[1])))
    done = min(workspace.finished[LABELS], len(of_rows))
    values_of_pixel = dict.fromkeys(made, 1) | dict(probabilities=max(2, classes))
    stores = {
        name: workspace.open(name, rows, (size[1], values_of_pixel[name]), dtype, done > 0)
        for name, dtype in made.items()
    }
    pyramid.borrow_for([[(scores, row)] for row in of_rows])
    progress.expect(len(of_rows) - done)
    label_window = _labels_of_windows(logits, covered, model.align_corners)
    for number, row in enumerate(of_rows[done:], done + 1):
        what = f'{next(iter(made))}, row {number} of {len(of_rows)}'
        waiting = []
        for window in progress(list(tiles(row, (side, side))), what):
            valid = passes.pixels_with_data(window)
            found = {}
            if valid is None or valid.any():
                if read is logits:
                    found['labels'] = label_window(window).to(made['labels'])[..., None]
                else:
                    found = _outputs(scores.read(window)[0].float(), head, made)
            found = {name: sent_back(values) for name, values in found.items()}
            waiting.append((window, found, valid))
            if passes.device == CPU or len(waiting) > 1:  # a GPU computes this tile meanwhile
                _write(stores, *waiting.pop(0))
            if passes.device == CPU:
                trim_memory()  # the C library would keep what tiles have freed
        for tile in waiting:
            _write(stores, *tile)
        workspace.finish(LABELS, number, *stores.values())
    return stores


def _write(
    stores: Mapping[str, TokenFile],
    window: Window,
    found: Mapping[str, Callable[[], Tensor]],
    valid: np.ndarray | None,
) -> None:
    """Write what was found in a window, or nothing but pixels without data."""
    for name, store in stores.items():
        shape, nothing = (*window.size, store.shape[2]), without_data(name, store.dtype)
        values = found[name]() if found else torch.tensor(nothing, dtype=store.dtype)
        values = values.expand(shape)
        if valid is not None and found:
            values = values.where(torch.from_numpy(valid)[..., None], nothing)
        store.write(window, values.contiguous())


def _labels_of_windows(
    logits: LazyMap, size: tuple[int, int], align_corners: bool
) -> Callable[[Window], Tensor]:
    """Return a function that labels windows from scores that are resized to (H, W)."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    sizes = zip(logits.shape[2:], size, strict=True)
    axes = [bilinear(n, [resized], align_corners, dtype) for n, resized in sizes]

    def labels_of(window: Window) -> Tensor:
        parts = [axis.part(span) for axis, span in zip(axes, window, strict=True)]
        reach, samplings = zip(*parts, strict=True)
        return labels_of_resized(logits.read(Window(*reach))[0].to(dtype), *samplings)

    return labels_of


def without_data(name: str, dtype: torch.dtype) -> float:
    """Return what pixels without data get of what :func:`label` makes."""
    if name == 'labels':
        return no_label(dtype)
    return math.nan if dtype.is_floating_point else 0


def _outputs(values: Tensor, head: nn.Module, made: Mapping[str, torch.dtype]) -> dict[str, Tensor]:
    """Return what is made of the outputs (classes, h, w) of a head for a tile, (h, w, values)."""
    if 'heights' in made:
        return dict(heights=values.permute(1, 2, 0).to(made['heights']))
    if len(values) == 1:  # a threshold instead of classes
        share = values[0].sigmoid()
        labels = (share > head.threshold).long()
        probabilities = torch.stack((1 - share, share))
    else:
        labels = values.argmax(0)
        probabilities = values.softmax(0) if len(made) > 1 else values
    found = dict(labels=labels[..., None])
    if 'scores' in made:
        found['scores'] = probabilities.gather(0, labels[None]).permute(1, 2, 0)
    if 'probabilities' in made:
        found['probabilities'] = probabilities.permute(1, 2, 0)
    return {name: _stored(found[name], name, dtype) for name, dtype in made.items()}


def _stored(values: Tensor, name: str, dtype: torch.dtype) -> Tensor:
    if dtype == torch.uint8 and name != 'labels':
        values = (values * 255).round()
    return values.to(dtype)
