"""Compute the maps of a backbone from the stores of its passes, window by window."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ..models.xcit import STRIDES
from .geometry import Window, grown
from .lazy import LazyMap
from .passes import Passes
from .token_files import TokenFile


class Pyramid:
    """The maps of a backbone whose passes are finished. All processes have to create it.

    Each process can read the rows of its band, and :meth:`borrow` copies more rows.

    Attributes:
        maps: A :class:`.LazyMap` for each level of the backbone.
    """

    def __init__(self, passes: Passes) -> None:
        self._height, self._bands = passes.size[0], passes.bands
        self._patch, self._device = passes.backbone.patch_size, passes.device
        self._stores = [passes.store(index + 1) for index, *_ in passes.backbone.levels]
        for store in self._stores:
            store.verify()  # hours may have passed since it was written
        self._rows_read: list[slice] | None = None
        # A band of a map is rounded to its own rows, each of which pools several tokens.
        rows, reach = passes.bands.rows, 2 * STRIDES[-1] // self._patch
        self.borrow(slice(rows.start - reach, rows.stop + reach))
        parts = zip(self._stores, passes.backbone.levels, passes.map_shapes, strict=True)
        self.maps = tuple(
            self._map(store, stride, resize, norm, shape)
            for store, (_, stride, resize, norm), shape in parts
        )

    def borrow(self, rows: slice) -> None:
        """Copy rows of tokens from other processes; all of them have to call this method."""
        for store in self._stores:
            self._bands.borrow(store, grown(rows, 0, self._height))

    def borrow_for(self, read: Callable[[Window], object], windows: Sequence[Window]) -> int:
        """Copy the rows of tokens that reading windows, from top to bottom, requires.

        Returns:
            The largest number of rows that a process reads beyond its band.
        """
        own, reach = self._bands.rows, 0
        if self._bands.count > 1:
            outermost = windows[:: max(1, len(windows) - 1)]  # none if there are too few windows
            spans = [own, *(self._rows_of(read, window) for window in outermost)]
            rows = slice(min(s.start for s in spans), max(s.stop for s in spans))
            reach = self._bands.max(max(own.start - rows.start, rows.stop - own.stop))
            self.borrow(rows)
        return reach

    def _rows_of(self, read: Callable[[Window], object], window: Window) -> slice:
        """Return the rows of tokens that a function reads, without computing its result."""
        self._rows_read = []
        with FakeTensorMode(allow_non_fake_inputs=True):
            read(window)
        rows, self._rows_read = self._rows_read, None
        return slice(min(span.start for span in rows), max(span.stop for span in rows))

    def _map(
        self,
        store: TokenFile,
        stride: int,
        resize: nn.Module,
        norm: nn.Module,
        shape: tuple[int, int, int],
    ) -> LazyMap:
        C, *size = shape
        patch = self._patch

        def read(window: Window) -> Tensor:
            inner, crops = [], []
            for span in window:
                start, stop = span.start * stride // patch, -(-span.stop * stride // patch)
                inner.append(slice(start, stop))
                first = start * patch // stride
                crops.append(slice(span.start - first, span.stop - first))
            if self._rows_read is None:
                x = store.read(Window(*inner)).to(self._device)
            else:  # in FakeTensorMode
                self._rows_read.append(inner[0])
                x = torch.empty(*Window(*inner).size, C, dtype=store.dtype, device=self._device)
            return norm(resize(x.permute(2, 0, 1)[None]))[(..., *crops)]

        like = torch.empty(0, dtype=store.dtype, device=self._device)
        return LazyMap(C, tuple(size), like, self._bands, read)
