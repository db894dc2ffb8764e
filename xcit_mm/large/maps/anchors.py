"""The outputs of a dense head on lazy maps, which are read by tiles of its anchors."""

from collections.abc import Sequence
from itertools import chain

from torch import Tensor, nn

from ...base.geometry import Window
from .lazy import LazyMap
from .streamed_maps import Pyramid


class DenseOutputs:
    """The outputs of a dense head of mmdet on the maps of an image.

    Tiles are windows of the image, in pixels. They begin at multiples of the largest stride, so
    that each anchor belongs to one tile.

    Attributes:
        strides: The pixels between the anchors of each level.
        size: The height and the width, in pixels, that the anchors of any level cover.
    """

    def __init__(self, head: nn.Module, maps: Sequence[LazyMap]) -> None:
        self._outputs = head(tuple(maps))  # lists of maps, one for each level
        self.strides = [max(stride) for stride in head.prior_generator.strides]
        self.size = tuple(
            max(n * stride for n, stride in zip(sizes, self.strides, strict=True))
            for sizes in zip(*(level.shape[2:] for level in self._outputs[0]), strict=True)
        )

    def read(self, tile: Window) -> list[list[Tensor]]:
        """Compute, for each output, the windows of its levels that hold the anchors of a tile."""
        shared: dict[tuple, Tensor] = {}
        return [[m.read(window, shared) for m, window in levels] for levels in self._windows(tile)]

    def borrow_for(self, pyramid: Pyramid, tiles: Sequence[Window]) -> int:
        """Copy the rows of tokens that reading the tiles of this process requires.

        Returns:
            The largest number of rows that a process reads beyond its own.
        """
        return pyramid.borrow_for([list(chain(*self._windows(tile))) for tile in tiles])

    def _windows(self, tile: Window) -> list[list[tuple[LazyMap, Window]]]:
        return [
            [(m, _on_level(tile, s, m)) for m, s in zip(output, self.strides, strict=True)]
            for output in self._outputs
        ]


def _on_level(tile: Window, stride: int, level: LazyMap) -> Window:
    """Return the window of a level that holds the anchors of a tile."""
    return Window(
        *(
            slice(span.start // stride, min(n, span.stop // stride))
            for span, n in zip(tile, level.shape[2:], strict=True)
        )
    )
