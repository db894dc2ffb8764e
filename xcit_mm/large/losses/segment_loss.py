"""The losses of a segmentor over an image of any size, and their gradients, tile by tile."""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...base.device import sent
from ...base.errors import UserError
from ...base.geometry import Window, tiles
from ...base.progress import Progress, silent
from ...data.datasets.labels import LabelRule
from ..labels.label_windows import LabelWindows
from ..maps.axes import Axis
from ..maps.lazy import LazyMap
from ..maps.streamed_maps import Pyramid
from ..tokens.tape import Tape
from .pixel_losses import EPS, losses_by_type

MAX_TILE = 512  # pixels; the graph of a tile, down to the tokens, is in memory
MAX_SCORES = 2**22  # scores for which losses are computed at a time: 16 MiB
HINT = 'train on crops, without stream'


def require_streamable_losses(model: nn.Module) -> None:
    """Refuse a segmentor with losses that cannot be computed tile by tile.

    Raises:
        UserError: If a head computes more than mmseg's cross-entropy and Dice losses of all pixels.
    """
    from mmseg.models.decode_heads.decode_head import BaseDecodeHead

    from ...network.models.aligned_segmentors import AlignedEncoderDecoder

    if type(model) is not AlignedEncoderDecoder:
        raise _not_streamed(f'{type(model).__name__} is not an AlignedEncoderDecoder', HINT)
    for where, head in model.heads().items():
        kind = type(head)
        for method in ('loss', 'loss_by_feat', '_stack_batch_gt'):
            if getattr(kind, method, None) is not getattr(BaseDecodeHead, method):
                raise _not_streamed(f'{kind.__name__} ({where}) overrides {method}', HINT)
        if head.sampler is not None:
            name = type(head.sampler).__name__
            raise _not_streamed(f'{name} ({where}) compares all pixels', 'remove the sampler')
        kinds = losses_by_type()
        for module in _modules(head):
            if type(module) not in kinds:
                problem = f'{type(module).__name__} ({where}) cannot be computed tile by tile'
                names = ' or '.join(kind.__name__ for kind in kinds)
                raise _not_streamed(problem, f'use {names}')


def _not_streamed(problem: str, remedy: str) -> UserError:
    return UserError(f'the model cannot be trained on images of any size: {problem}; {remedy}')


def _modules(head: nn.Module) -> Sequence[nn.Module]:
    modules = head.loss_decode
    return modules if isinstance(modules, nn.ModuleList) else [modules]


@torch.enable_grad()
def losses(
    model: nn.Module, pyramid: Pyramid, labels: LabelWindows, progress: Progress = silent
) -> dict[str, Tensor]:
    """Compute the losses of an image, and the gradients of their sum.

    The losses and the gradients equal what mmseg computes for the whole image. The gradients of the
    neck, the heads and the pyramid are added to their ``grad``, and the gradients of the tokens to
    the gradients of the pyramid, which the caller has to settle. Each process adds the gradients of
    its own rows of pixels.

    Args:
        model: A segmentor that :func:`require_streamable_losses` accepts.
        pyramid: The maps of its backbone, with a tape.
        labels: The labels of all pixels.
        progress: The display of the tiles.

    Returns:
        The entries of mmseg's log, such as ``decode.loss_ce`` and ``decode.acc_seg``, without
        gradients. They are the same in all processes.

    Raises:
        UserError: If a label is not a class, or if it is not known which pixels a head reads.
    """
    maps = model.neck(pyramid.maps) if model.with_neck else pyramid.maps
    size = pyramid.covered
    parts = maps, labels, size, pyramid.scale
    heads = [HeadLosses(name, head, *parts) for name, head in model.heads().items()]
    tape, shards = pyramid.maps[0].tape, pyramid.maps[0].shards
    own = Window(shards.share(labels.shape[0]), slice(0, labels.shape[1]))
    side = MAX_TILE * math.isqrt(pyramid.scale)
    rows = tiles(own, (side, labels.shape[1]))
    pyramid.borrow_for([[(head.scores, row) for head in heads] for row in rows])
    windows = list(tiles(own, (side, side)))

    with_sums = [head for head in heads if head.needs_sums]
    progress.expect(1 + bool(with_sums))
    if with_sums:
        with torch.no_grad():
            for window in progress(windows, 'sums of losses'):
                target = _read(labels, window)
                for head in with_sums:
                    head.add(window, target)
        for head in with_sums:
            head.finish_sums()
    for window in progress(windows, 'losses'):
        target = _read(labels, window)
        for head in heads:
            head.backward(window, target)
            tape.collect()
    tape.finish()
    return {name: value for head in heads for name, value in head.log().items()}


def _read(labels: LabelWindows, window: Window) -> Tensor:
    return torch.from_numpy(labels.read(window).astype(np.int64))[None]


class HeadLosses:
    """The losses of a head, added up tile by tile.

    Args:
        name: The prefix of the losses in the log.
        head: A head that :func:`require_streamable_losses` accepts.
        maps: Its inputs.
        labels: The labels of all pixels.
        size: The pixels (H, W) that the maps cover.
        scale: See :class:`.Passes`.

    Attributes:
        scores: The map (1, C, H, W) of the scores of the pixels that the maps cover.
        needs_sums: Whether all tiles have to be passed to :meth:`add` before :meth:`backward`.
    """

    def __init__(
        self,
        name: str,
        head: nn.Module,
        maps: Sequence[LazyMap],
        labels: LabelWindows,
        size: tuple[int, int],
        scale: int,
    ) -> None:
        rule = LabelRule.of_head(head.num_classes, head.out_channels, head.ignore_index)
        labels.require_classes(rule)
        self._name, self._ignored = name, head.ignore_index
        kinds = losses_by_type()
        self._losses = [
            (module.loss_name, kinds[type(module)](module, head, labels.counts))
            for module in _modules(head)
        ]
        self._with_sums = [loss for _, loss in self._losses if loss.needs_sums]
        self.needs_sums = bool(self._with_sums)

        logits = head(maps)
        if not isinstance(logits, LazyMap):
            kind = type(head).__name__
            raise _not_streamed(f'{kind} ({name}) returns more than a map of scores', HINT)
        self._logits = HeldMap(logits)
        how = dict(mode='bilinear', align_corners=head.align_corners)
        self.scores = F.interpolate(self._logits, size=size, **how)
        side = math.isqrt(scale * MAX_SCORES // head.out_channels) // 32 * 32
        self._part = (max(32, side),) * 2
        is_labeled = np.arange(len(labels.counts)) != head.ignore_index
        self._labeled = int(labels.counts[is_labeled].sum())
        self._correct = torch.zeros((), dtype=torch.long, device=maps[0].device)
        self._started = False

    def add(self, tile: Window, labels: Tensor) -> None:
        """Add a tile to the sums that the losses depend on."""
        for scores, target in self._parts(tile, labels):
            for loss in self._with_sums:
                loss.add(scores, target)

    def finish_sums(self) -> None:
        for loss in self._with_sums:
            loss.finish_sums(self.scores.shards)

    def backward(self, tile: Window, labels: Tensor) -> None:
        """Add the share of a tile to the losses, and the gradients to the parameters."""
        for scores, target in self._parts(tile, labels):
            shares = [(name, loss.share(scores, target)) for name, loss in self._losses]
            # mmengine adds up the entries with such a name, and only logs the others.
            total = sum(share for name, share in shares if 'loss' in name)
            if isinstance(total, Tensor) and total.requires_grad:
                total.backward()
                self._logits.tape.collect()
            is_correct = (scores.detach().argmax(1) == target) & (target != self._ignored)
            self._correct += is_correct.sum()
        self._logits.backward()

    def log(self) -> dict[str, Tensor]:
        """Return the entries of the log. All processes have to call this method."""
        shards, values = self.scores.shards, {}
        for name, loss in self._losses:
            values[name] = values.get(name, 0) + loss.value(shards)
        correct = shards.sum(self._correct.cpu().double())
        values['acc_seg'] = (correct + EPS) * (100 / (self._labeled + EPS))
        dtype = torch.promote_types(self.scores.dtype, torch.float32)
        like = dict(device=self.scores.device, dtype=dtype)
        return {f'{self._name}.{name}': value.to(**like) for name, value in values.items()}

    def _parts(self, tile: Window, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the scores and the labels of the parts of a tile that the losses depend on.

        The first part is always among them, so that gradients are zero instead of missing.
        """
        self._logits.hold(self.scores.reach(tile))
        for part in tiles(tile, self._part):
            target = labels[(..., *part.within(tile))]
            if self.needs_sums or not self._started or (target != self._ignored).any():
                self._started = True
                scores = self.scores.read(part)
                scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
                yield scores, sent(target, scores.device)


class HeldMap(LazyMap):
    """A map that reads its windows from one window of its source, which is computed only once.

    A large window of a coarse map has a small halo and needs little memory. Results at full
    resolution need much memory, so they are computed and differentiated in parts. The gradients of
    the parts add up to the gradient of the window, which :meth:`backward` passes to the source.

    Args:
        source: The map.
    """

    def __init__(self, source: LazyMap) -> None:
        axes = [Axis(n, lambda span: span) for n in source.shape[2:]]
        super().__init__(source.shape[1], axes, source, source.shards, self._part, tape=Tape())
        self._source = source
        self._window: Window | None = None
        self._values = self._gradient = None

    def hold(self, window: Window) -> None:
        """Replace the window, which is computed when a part of it is first read."""
        self._window, self._values, self._gradient = window, None, None

    def backward(self) -> None:
        """Pass the gradients of the parts to the source, and free the graph."""
        if self._gradient is not None:
            self._values.backward(self._gradient)
        self.hold(self._window)

    def tokens_read(self, window: Window) -> Iterator[Window]:
        return self._source.tokens_read(window)

    def _part(self, window: Window) -> Tensor:
        if self._values is None:
            self._values = self._source.read(self._window, {})
        part = (..., *window.within(self._window))
        return self.tape.window(self._values.detach()[part], partial(self._add, part))

    def _add(self, part: tuple, gradient: Tensor) -> None:
        if self._gradient is None:
            self._gradient = torch.zeros_like(self._values)
        self._gradient[part] += gradient
