"""RoI heads on lazy maps, whose RoI layers read only the windows around their boxes."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from ...base.geometry import Window, overlap
from ...network.xcit import STRIDES
from ..tokens.passes import Passes
from .lazy import LazyMap
from .streamed_maps import Pyramid

MARGIN = 3  # pixels of a map beyond a box that the samples of the box may read


class RoISource:
    """A map for mmdet's RoI extractors, which only create tensors of its type."""

    def __init__(self, level: LazyMap) -> None:
        self.level = level
        self.new_zeros = level.new_zeros

    def read(self, window: Window) -> Tensor:
        return self.level.read(window)

    def sum(self) -> float:
        """Return 0, because extractors add 0 times the sum of a map that no box reads."""
        return 0.0

    def __getitem__(self, index: int | None) -> 'RoISource':
        """Return the map of the only image of the batch, or a batch of this map."""
        return self

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None) -> Tensor:
        boxes, source = args  # boxes.type_as(map), but 16 bits are too few for coordinates
        return boxes.to(source.level.device, torch.promote_types(boxes.dtype, source.level.dtype))


class HeldRoISource(RoISource):
    """A map for the RoI extractors of a tile, which often read parts of the same windows.

    The windows and their graphs stay in memory as long as the map does.
    """

    def __init__(self, level: LazyMap) -> None:
        super().__init__(level)
        self._held: list[tuple[Window, Tensor]] = []

    def read(self, window: Window) -> Tensor:
        for outer, values in self._held:
            if all(overlap(a, b) == a for a, b in zip(window, outer, strict=True)):
                return values[(..., *window.within(outer))]
        values = super().read(window)
        if torch.is_grad_enabled():  # samplers of hard examples read without graphs
            self._held.append((window, values))
        return values


@contextmanager
def reading_windows(roi_head: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Make the RoI layers of a head read only the windows of the maps around their boxes.

    They compute in the dtype of the boxes, and return the ``dtype`` of the maps.
    """
    with ExitStack() as stack:
        for module in roi_head.modules():
            for layer in getattr(module, 'roi_layers', ()):
                stack.enter_context(layer.register_forward_pre_hook(window_around))
                narrow = layer.register_forward_hook(lambda *args: args[2].to(dtype))
                stack.enter_context(narrow)
        yield


def window_around(layer: nn.Module, inputs: tuple[RoISource, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the window of a map around the boxes (n, 5), and the boxes relative to it."""
    source, rois = inputs
    boxes = rois[:, 1:] * layer.spatial_scale
    start = (boxes[:, :2].amin(0).floor() - MARGIN).int().tolist()
    stop = (boxes[:, 2:].amax(0).ceil() + MARGIN).int().tolist()
    height, width = source.level.shape[2:]
    columns, rows = (
        slice(max(0, min(a, n - 1)), max(1, min(b, n)))
        for a, b, n in zip(start, stop, (width, height), strict=True)
    )
    corner = rois.new_tensor([0, *[columns.start, rows.start] * 2]) / layer.spatial_scale
    return source.read(Window(rows, columns)).to(rois.dtype), rois - corner


def borrow_around(
    pyramid: Pyramid, passes: Passes, boxes: Sequence[Tensor], reach: int, stages: int = 1
) -> None:
    """Copy the rows of other processes that are needed to compute the maps within boxes (n, 4).

    ``reach`` is the number of rows beyond its own that a process reads in any case. Each of the
    ``stages`` of a cascade after the first may move a box by the height of the box.
    """
    shards, patch = passes.shards, passes.backbone.patch_size
    start, stop = shards.rows.start - reach, shards.rows.stop + reach
    rows = torch.cat([b[:, 1::2].cpu() for b in boxes]) if boxes else torch.zeros(0, 2)
    if shards.count > 1 and len(rows):
        tallest = int((rows[:, 1] - rows[:, 0]).max())
        margin = reach + (4 * STRIDES[-1] + (stages - 1) * tallest) // patch
        start = min(start, int(rows.min()) // patch - margin)
        stop = max(stop, int(rows.max()) // patch + margin)
    pyramid.borrow(slice(start, stop))


def number_of_stages(roi_head: nn.Module) -> int:
    """Return the number of stages of a cascade, or 1."""
    heads = roi_head.bbox_head
    return len(heads) if isinstance(heads, nn.ModuleList) else 1
