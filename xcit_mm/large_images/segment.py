"""Labels or heights of the pixels of an image of any size, tile by tile, as if of a whole image."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from ..errors import UserError
from ..progress import Progress, silent
from ..scenes.geometry import Window, tiles
from .passes import Passes
from .streamed_maps import Pyramid
from .token_files import TokenFile

MAX_TILE = 512  # pixels
MAX_SCORES = 2**24  # scores of a tile: 64 MiB
LABELS = 'rows of labels'  # the stage of a workspace


def predicts_heights(model: nn.Module) -> bool:
    """Return whether a model predicts a number for each pixel instead of a class."""
    return any(kind.__name__ == 'DepthEstimator' for kind in type(model).__mro__)


def has_unmodified_head(model: nn.Module) -> bool:
    """Return whether mmseg's own code computes labels or heights, only from the map of the head."""
    from mmseg.models import EncoderDecoder
    from mmseg.models.decode_heads.decode_head import BaseDecodeHead
    from mmseg.models.segmentors import DepthEstimator

    if type(model) not in (EncoderDecoder, DepthEstimator):
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

    A model that :func:`predicts_heights` gives the pixels heights instead, in a float ``dtype``.

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
    bilinear = dict(mode='bilinear', align_corners=model.align_corners)
    scores = F.interpolate(head(maps), size=size, **bilinear)

    shards, workspace = passes.shards, passes.workspace
    rows = shards.share(size[0])
    made = {'labels': dtype} | ({'scores': torch.uint8} if with_scores else {})
    side = max(32, min(MAX_TILE, math.isqrt(MAX_SCORES // classes) // 32 * 32))
    of_rows = list(tiles(Window(rows, slice(0, size[1])), (side, size[1])))
    done = min(workspace.finished[LABELS], len(of_rows))
    stores = [workspace.open(k, rows, (size[1], 1), v, done > 0) for k, v in made.items()]
    if done:
        for store in stores:
            store.verify(slice(rows.start, of_rows[done - 1].rows.stop))
    pyramid.borrow_for([[(scores, row)] for row in of_rows])
    progress.expect(len(of_rows) - done)
    for number, row in enumerate(of_rows[done:], done + 1):
        what = f'labels, row {number} of {len(of_rows)}'
        for window in progress(list(tiles(row, (side, side))), what):
            values = scores.read(window)[0].float()
            if predicts_heights(model):
                labels = values[0]
            elif classes == 1:  # a threshold instead of classes
                share = values[0].sigmoid()
                labels = share > head.threshold
                best = torch.where(labels, share, 1 - share)
            else:
                labels = values.argmax(0)
                best = values.softmax(0).amax(0) if with_scores else None
            stores[0].write(window, labels.to(dtype)[..., None].cpu())
            if with_scores:
                stores[1].write(window, (best * 255).round().to(torch.uint8)[..., None].cpu())
        workspace.finish(LABELS, number, *stores)
    return stores
