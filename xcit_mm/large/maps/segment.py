"""Labels or heights of the pixels of an image of any size, tile by tile, as if of a whole image."""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...base.device import sent_back, trim_memory
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


@torch.inference_mode()
def label(
    model: nn.Module,
    passes: Passes,
    size: tuple[int, int],
    outputs: Mapping[str, torch.dtype],
    progress: Progress = silent,
) -> dict[str, TokenFile]:
    """Label the pixels of an image whose tokens are in the stores of ``passes``.

    The labels equal the labels of the mode 'whole'. A run that was killed continues after the
    last finished row of tiles. Pixels without data get :func:`.no_label`, and NaN, or 0 in uint8.

    Args:
        model: A segmentor that :func:`.require_segmentor` accepts.
        passes: The passes over the image, which are finished.
        size: (H, W) of the image.
        outputs: What is computed, and in which dtype: 'heights' for a model that
            :func:`.predicts_heights`, otherwise 'labels', possibly 'scores', the probabilities of
            the labels, and 'probabilities', the probabilities of all classes. In uint8, 255 is the
            probability 1.
        progress: The display of the progress.

    Returns:
        Stores with the rows of this process, ``shards.share(H)``: (rows, W, 1), or (rows, W,
        classes) for the probabilities.
    """
    pyramid = Pyramid(passes)
    outputs_of = _Outputs(model, pyramid, outputs)
    own = Window(passes.shards.share(size[0]), slice(0, size[1]))
    side = outputs_of.side(passes.scale)
    rows = list(tiles(own, (side, size[1])))
    pyramid.borrow_for([[(outputs_of.scores, row)] for row in rows])

    workspace, channels = passes.workspace, outputs_of.channels
    done = min(workspace.finished[LABELS], len(rows))
    stores = {
        name: workspace.open(name, own.rows, (size[1], channels[name]), dtype, done > 0)
        for name, dtype in outputs.items()
    }
    progress.expect(len(rows) - done)
    for number, row in enumerate(rows[done:], done + 1):
        what = f'{next(iter(outputs))}, row {number} of {len(rows)}'
        waiting = []
        for window in progress(list(tiles(row, (side, side))), what):
            valid = passes.pixels_with_data(window)
            values = outputs_of.read(window) if valid is None or valid.any() else {}
            values = {name: sent_back(of_name) for name, of_name in values.items()}
            waiting.append((window, values, valid))
            if passes.device == CPU or len(waiting) > 1:  # a GPU computes this tile meanwhile
                _write(stores, *waiting.pop(0))
            if passes.device == CPU:
                trim_memory()  # the C library would keep what tiles have freed
        for tile in waiting:
            _write(stores, *tile)
        workspace.finish(LABELS, number, *stores.values())
    return stores


class _Outputs:
    """What a segmentor computes for windows of an image.

    Attributes:
        scores: The map of the scores of the pixels that the maps cover, which may reach beyond the
            image.
        channels: The values of a pixel by the name of the output.
    """

    def __init__(
        self, model: nn.Module, pyramid: Pyramid, outputs: Mapping[str, torch.dtype]
    ) -> None:
        self._head, self._outputs, self._classes = model.decode_head, outputs, model.out_channels
        self._logits = self._head(model.neck(pyramid.maps) if model.with_neck else pyramid.maps)
        how = dict(mode='bilinear', align_corners=model.align_corners)
        self.scores = F.interpolate(self._logits, pyramid.covered, **how)
        self.channels = dict.fromkeys(outputs, 1) | dict(probabilities=max(2, self._classes))
        # Labels alone need only the scores that can win somewhere.
        self._label_window = None
        if self._classes > 1 and [*outputs] == ['labels']:
            labels_of = _labels_of_windows(self._logits, pyramid.covered, model.align_corners)
            self._label_window = labels_of

    def side(self, scale: int) -> int:
        """Return the side of a tile in pixels, whose scores are ``MAX_SCORES`` at most."""
        covered = self.scores.shape[2:]
        read = self.scores if self._label_window is None else self._logits
        pixels = scale * MAX_SCORES // self._classes * math.prod(covered)
        pixels //= math.prod(read.shape[2:])
        return max(32, min(MAX_TILE * math.isqrt(scale), math.isqrt(pixels) // 32 * 32))

    def read(self, window: Window) -> dict[str, Tensor]:
        """Compute the outputs (h, w, values) of a window."""
        if self._label_window is not None:
            return dict(labels=self._label_window(window).to(self._outputs['labels'])[..., None])
        return _computed(self.scores.read(window)[0].float(), self._head, self._outputs)


def _write(
    stores: Mapping[str, TokenFile],
    window: Window,
    values: Mapping[str, Callable[[], Tensor]],
    valid: np.ndarray | None,
) -> None:
    """Write the outputs of a window, or nothing but pixels without data."""
    for name, store in stores.items():
        shape, nothing = (*window.size, store.shape[2]), without_data(name, store.dtype)
        part = values[name]() if values else torch.tensor(nothing, dtype=store.dtype)
        part = part.expand(shape)
        if valid is not None and values:
            part = part.where(torch.from_numpy(valid)[..., None], nothing)
        store.write(window, part.contiguous())


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
    """Return the value of pixels without data in an output of :func:`label`."""
    if name == 'labels':
        return no_label(dtype)
    return math.nan if dtype.is_floating_point else 0


def _computed(
    values: Tensor, head: nn.Module, outputs: Mapping[str, torch.dtype]
) -> dict[str, Tensor]:
    """Return the outputs (h, w, values) for what a head computes for a tile, (classes, h, w)."""
    if 'heights' in outputs:
        return dict(heights=values.permute(1, 2, 0).to(outputs['heights']))
    if len(values) == 1:  # a threshold instead of classes
        share = values[0].sigmoid()
        labels = (share > head.threshold).long()
        probabilities = torch.stack((1 - share, share))
    else:
        labels = values.argmax(0)
        probabilities = values.softmax(0) if len(outputs) > 1 else values
    computed = dict(labels=labels[..., None])
    if 'scores' in outputs:
        computed['scores'] = probabilities.gather(0, labels[None]).permute(1, 2, 0)
    if 'probabilities' in outputs:
        computed['probabilities'] = probabilities.permute(1, 2, 0)
    return {name: _stored(computed[name], name, dtype) for name, dtype in outputs.items()}


def _stored(values: Tensor, name: str, dtype: torch.dtype) -> Tensor:
    if dtype == torch.uint8 and name != 'labels':
        values = (values * 255).round()
    return values.to(dtype)
