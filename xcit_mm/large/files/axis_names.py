"""Which axes of an array are rows, columns and channels."""

from collections.abc import Sequence
from typing import NamedTuple

from ...base.errors import UserError

ROWS = 'y', 'lat', 'latitude', 'row', 'rows', 'height', 'h'
COLUMNS = 'x', 'lon', 'longitude', 'column', 'columns', 'width', 'w'
CHANNELS = 'c', 's', 'channel', 'channels', 'band', 'bands', 'wavelength', 'wavelengths'


class Axes(NamedTuple):
    """The numbers of the axes of an array; its other axes have the length 1."""

    rows: int
    columns: int
    channels: int | None

    def shape(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """Return (H, W, channels) of an array of a shape."""
        channels = 1 if self.channels is None else shape[self.channels]
        return shape[self.rows], shape[self.columns], channels


def named_axes(name: str, shape: Sequence[int], names: Sequence[str]) -> Axes:
    """Return the axes with the usual names, such as y, x and c.

    Raises:
        UserError: If there are no rows or no columns, or if another axis is longer than 1.
    """
    lowered = [text.lower() for text in names]
    found = [
        next((i for i, text in enumerate(lowered) if text in known), None)
        for known in (ROWS, COLUMNS, CHANNELS)
    ]
    if None in found[:2]:
        raise UserError(
            f'{name} has the axes {", ".join(names)}, but an image needs y and x: rename them'
        )
    for axis, length in enumerate(shape):
        if axis not in found and length != 1:
            raise UserError(
                f'{name} has {length} images along the axis {names[axis]}, but one image is '
                'needed: copy one of them to a file of its own'
            )
    return Axes(*found)


def unnamed_axes(name: str, shape: Sequence[int]) -> Axes:
    """Return the axes of an array (H, W), (H, W, channels) or (channels, H, W).

    The channels are the shorter of the first and the last axis, or the last one if both have the
    same length. Further axes come first, with the length 1.
    """
    first = max(0, len(shape) - 3)
    if len(shape) < 2 or any(length != 1 for length in shape[:first]):
        raise UserError(
            f'{name} has the shape {tuple(shape)}, but an image is (H, W), (H, W, channels) or '
            '(channels, H, W): copy a part of it to an array of its own'
        )
    if len(shape) == 2:
        return Axes(0, 1, None)
    if shape[first] < shape[-1]:
        return Axes(first + 1, first + 2, first)
    return Axes(first, first + 1, first + 2)
