"""Labels of the pixels of an image of any size, tile by tile, as if it were labeled as a whole."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import UserError
from ..ops.resized_labels import bilinear, labels_of_resized
from ..progress import Progress, silent
from ..scenes.geometry import Window, tiles
from .lazy import LazyMap
from .passes import Passes
from .streamed_maps import Pyramid
from .token_files import TokenFile

MAX_TILE = 512  # pixels
MAX_SCORES = 2**24  # scores of a tile: 64 MiB
LABELS = 'rows of labels'  # the stage of a workspace


def has_unmodified_head(model: nn.Module) -> bool:
    """Return whether mmseg's own code computes the labels, only from the map of the head."""
    from mmseg.models import EncoderDecoder
    from mmseg.models.decode_heads.decode_head import BaseDecodeHead

    if type(model) is not EncoderDecoder:
        return False
    head = type(model.decode_head)
    return (
        head.predict is BaseDecodeHead.predict
        and head.predict_by_feat is BaseDecodeHead.predict_by_feat
        and getattr(model.data_preprocessor, 'test_cfg', None) is None  # it would pad
    )


def require_segmentor(model: nn.Module, remedy: str = 'use --sliced') -> None:
    """Refuse a segmentor whose labels depend on more than the maps of its head."""
    if not has_unmodified_head(model):
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
    dtype: torch.dtype,
    with_scores: bool = False,
    progress: Progress = silent,
) -> list[TokenFile]:
    """Label the pixels of an image whose tokens are in the stores of ``passes``.

    The model is one that :func:`require_segmentor` accepts, and ``size`` is (H, W). The labels
    equal the labels of mmseg's mode 'whole'. A run that was killed continues after the last
    finished row of tiles.

    Returns:
        Stores with the rows of this process, ``shards.share(H)``: the labels (rows, W, 1) and, with
        ``with_scores``, their probabilities in uint8.
    """
    pyramid = Pyramid(passes)
    maps = model.neck(pyramid.maps) if model.with_neck else pyramid.maps
    head, classes = model.decode_head, model.out_channels
    logits = head(maps)
    scores = F.interpolate(logits, size, mode='bilinear', align_corners=model.align_corners)

    shards, workspace = passes.shards, passes.workspace
    rows = shards.share(size[0])
    made = {'labels': dtype} | ({'scores': torch.uint8} if with_scores else {})
    read = logits if classes > 1 and not with_scores else scores
    pixels = MAX_SCORES // classes * math.prod(size) // math.prod(read.shape[2:])
    side = max(32, min(MAX_TILE, math.isqrt(pixels) // 32 * 32))
    of_rows = list(tiles(Window(rows, slice(0, size[1])), (side, size[1])))
    done = min(workspace.finished[LABELS], len(of_rows))
    stores = [workspace.open(k, rows, (size[1], 1), v, done > 0) for k, v in made.items()]
    if done:
        for store in stores:
            store.verify(slice(rows.start, of_rows[done - 1].rows.stop))
    pyramid.borrow_for([[(scores, row)] for row in of_rows])
    progress.expect(len(of_rows) - done)
    label_window = _labels_of_windows(logits, size, model.align_corners)
    for number, row in enumerate(of_rows[done:], done + 1):
        what = f'labels, row {number} of {len(of_rows)}'
        for window in progress(list(tiles(row, (side, side))), what):
            if read is logits:
                labels = label_window(window)
            elif classes == 1:  # a threshold instead of classes
                share = scores.read(window)[0, 0].float().sigmoid()
                labels = share > head.threshold
                best = torch.where(labels, share, 1 - share)
            else:
                values = scores.read(window)[0].float()
                labels, best = values.argmax(0), values.softmax(0).amax(0)
            stores[0].write(window, labels.to(dtype)[..., None].cpu())
            if with_scores:
                stores[1].write(window, (best * 255).round().to(torch.uint8)[..., None].cpu())
        workspace.finish(LABELS, number, *stores)
    return stores


def _labels_of_windows(
    logits: LazyMap, size: tuple[int, int], align_corners: bool
) -> Callable[[Window], Tensor]:
    """Return a function that labels windows of an image (H, W) from scores that it resizes."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    sizes = zip(logits.shape[2:], size, strict=True)
    axes = [bilinear(n, [resized], align_corners, dtype) for n, resized in sizes]

    def labels_of(window: Window) -> Tensor:
        parts = [axis.part(span) for axis, span in zip(axes, window, strict=True)]
        reach, samplings = zip(*parts, strict=True)
        return labels_of_resized(logits.read(Window(*reach))[0].to(dtype), *samplings)

    return labels_of
