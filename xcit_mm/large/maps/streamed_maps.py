"""The maps of a backbone, computed window by window from the stores of its passes."""

from collections.abc import Sequence
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...base.device import sent
from ...base.geometry import Span, Window, grown, shifted
from ...network.xcit import STRIDES
from ..tokens.passes import Passes
from ..tokens.shards import Borrowed
from ..tokens.tape import Tape, TokenGradients
from .axes import Axis
from .lazy import LazyMap


class Pyramid:
    """The maps of a backbone whose passes are finished. All processes have to create it.

    Each process can read its own rows, and :meth:`borrow` copies more rows.

    Args:
        passes: The passes.
        tape: The leaves of the graphs of tiles, if the maps are trained.
        gradients: With a tape, the gradients of the tokens of each level, to which tiles are added.

    Attributes:
        maps: A :class:`.LazyMap` for each level of the backbone.
        covered: The pixels (H, W) that the maps cover.
        scale: See :class:`.Passes`.
    """

    def __init__(
        self, passes: Passes, tape: Tape | None = None, gradients: Sequence[TokenGradients] = ()
    ) -> None:
        self._tape, self._gradients = tape, gradients
        self._height, self._shards = passes.size[0], passes.shards
        self._size, self.covered, self.scale = passes.size, passes.covered, passes.scale
        self._patch, self._device = passes.backbone.patch_size, passes.device
        self._stores = [passes.store(index + 1) for index, *_ in passes.backbone.levels]
        self._borrowed: list[Borrowed] = []
        # The rows of this process are rounded to rows of a map, each of which pools several tokens.
        rows, reach = passes.shards.rows, 2 * STRIDES[-1] // self._patch
        self.borrow(slice(rows.start - reach, rows.stop + reach))
        parts = enumerate(zip(passes.backbone.levels, passes.map_shapes, strict=True))
        self.maps = tuple(
            self._map(number, stride, resize, norm, shape)
            for number, ((_, stride, resize, norm), shape) in parts
        )

    def borrow(self, rows: slice) -> None:
        """Copy rows of tokens from other processes; all of them have to call this method."""
        needed = grown(rows, 0, self._height)
        for gradient in self._gradients:
            gradient.settle()
            gradient.expect(needed)
        self._borrowed.clear()
        self._borrowed.extend(self._shards.borrow(store, needed) for store in self._stores)

    def borrow_for(self, reads: Sequence[Sequence[tuple[LazyMap, Window]]]) -> int:
        """Copy the rows of tokens that are needed to read windows of maps and to finish the tape.

        Args:
            reads: The windows that are read together, from top to bottom.

        Returns:
            The largest number of rows that a process reads beyond its own.
        """
        own, reach = self._shards.rows, 0
        if self._shards.count > 1:
            outermost = chain(*reads[:: max(1, len(reads) - 1)])  # none if there are too few
            if self._tape is not None:
                outermost = chain(outermost, self._tape.reads)
            spans = [own, *(w.rows for m, window in outermost for w in m.tokens_read(window))]
            rows = slice(min(s.start for s in spans), max(s.stop for s in spans))
            reach = self._shards.max(max(own.start - rows.start, rows.stop - own.stop))
            self.borrow(rows)
        return reach

    def _map(
        self,
        number: int,
        stride: int,
        resize: nn.Module,
        norm: nn.Module,
        shape: tuple[int, int, int],
    ) -> LazyMap:
        C, *size = shape
        patch, store = self._patch, self._stores[number]

        pooled = max(1, stride // patch)  # tokens that become a pixel of the map

        def tokens_of(n: int, span: Span) -> Span:
            """Return which of n tokens a span reads; see :func:`.fill_up` for the last one."""
            first = min(span.start * stride // patch, n - 1) // pooled * pooled
            return slice(first, min(-(-span.stop * stride // patch), n))

        def compute(window: Window) -> Tensor:
            tokens = Window(*map(tokens_of, self._size, window))
            x = sent(store.read(tokens, self._borrowed[number]), self._device)
            if self._tape is not None:
                x = self._tape.window(x, partial(self._gradients[number].add, tokens))
            x = x.permute(2, 0, 1)[None]
            bottom, right = (
                max(0, -(-span.stop * stride // patch) - of_span.stop)
                for span, of_span in zip(window, tokens, strict=True)
            )
            if bottom or right:
                x = F.pad(x, (0, right, 0, bottom), mode='replicate')
            crops = (
                shifted(s, -(t.start * patch // stride))
                for s, t in zip(window, tokens, strict=True)
            )
            return norm(resize(x))[(..., *crops)]

        axes = [Axis(n, partial(tokens_of, of)) for n, of in zip(size, self._size, strict=True)]
        like = torch.empty(0, dtype=store.dtype, device=self._device)
        return LazyMap(C, axes, like, self._shards, compute, tape=self._tape)
