"""Labels of scores that are resized bilinearly, from the classes that can win.

A resized pixel is a mean of few scores with weights that are not negative: the corners of its
*cell*. If one class wins at all corners, it wins everywhere in the cell. Elsewhere a class can win
only if no other class is above it at all corners. Only these classes are interpolated, for trained
models two or three of 150, and only in the cells at the borders of objects.
"""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 64  # cells on a side that are labeled together; on a CPU, their scores fit into a cache
BLOCK_OF_GPU = 640  # a streamed tile of 2,048 pixels has 513 cells of 4 pixels
MAX_SCORES = 2**22  # numbers that are interpolated at a time
COST = 4  # of interpolating the score of one class in one cell, relative to all of them in blocks


class Sampling(NamedTuple):
    """The pixels of an axis that is resized: which scores each of them is a mean of.

    Attributes:
        first: (size,), the index of the first score.
        last: (size,), the index of the last score, at most ``m`` - 1 after the first one.
        weights: (size, m), the weights of the scores from the first one on.
    """

    first: Tensor
    last: Tensor
    weights: Tensor

    def part(self, span: slice) -> tuple[slice, 'Sampling']:
        """Return the scores that a span of the pixels reads, and its sampling of these scores."""
        reach = slice(int(self.first[span.start]), int(self.last[span.stop - 1]) + 1)
        first, last = self.first[span] - reach.start, self.last[span] - reach.start
        return reach, Sampling(first, last, self.weights[span])


def sources(
    n: int, size: int, align_corners: bool, dtype: torch.dtype, factor: float | None = None
) -> Tensor:
    """Return the places of ``size`` pixels among n scores, as ``F.interpolate`` computes them."""
    place = torch.arange(size, dtype=dtype)
    if align_corners:
        return place * ((n - 1) / (size - 1) if size > 1 else 0.0)
    return ((place + 0.5) * (n / size if factor is None else 1 / factor) - 0.5).clamp_min(0)


def bilinear(
    n: int, sizes: Sequence[int | slice], align_corners: bool, dtype: torch.dtype = torch.float32
) -> Sampling:
    """Return the sampling of an axis of n scores that is resized to one size after another.

    A slice among the sizes crops the axis.
    """
    sampling = Sampling(*[torch.arange(n)] * 2, torch.ones(n, 1, dtype=dtype))
    for size in sizes:
        if isinstance(size, slice):
            sampling = Sampling(*(values[size] for values in sampling))
            continue
        count = len(sampling.first)
        if size == count:
            continue  # the places are whole numbers
        place = sources(count, size, align_corners, dtype)
        lower = place.long().clamp_max(count - 1)
        fraction = (place - lower).clamp(0, 1)
        # The first pixels may all lie at the first score or before it.
        upper = torch.where((lower == 0) & (fraction == 0), 0, lower + 1).clamp_max(count - 1)
        sampling = _composed(sampling, lower, upper, fraction)
    return sampling


def _composed(inner: Sampling, lower: Tensor, upper: Tensor, fraction: Tensor) -> Sampling:
    """Return the sampling of pixels between two pixels of another sampling."""
    first, last = inner.first[lower], inner.last[upper]
    weights = fraction.new_zeros(len(first), int((last - first).max()) + 1)
    for of_inner, share in (lower, 1 - fraction), (upper, fraction):
        for i in range(inner.weights.shape[1]):
            column = (inner.first[of_inner] - first + i).clamp_max(weights.shape[1] - 1)
            weights.scatter_add_(1, column[:, None], (share * inner.weights[of_inner, i])[:, None])
    return Sampling(first, last, weights)


class _Cells(NamedTuple):
    """The cells of an axis: consecutive pixels that are means of the same scores.

    Attributes:
        corners: (cells, m), the indices of the scores.
        counts: (cells,), the number of pixels.
        pixels: (cells, most), the indices of the pixels; the last one is repeated.
        weights: (cells, most, m).
    """

    corners: Tensor
    counts: Tensor
    pixels: Tensor
    weights: Tensor

    @classmethod
    def of(cls, sampling: Sampling) -> '_Cells':
        first, last, weights = sampling
        _, counts = torch.stack((first, last)).unique_consecutive(dim=1, return_counts=True)
        stops = counts.cumsum(0)
        starts, m = stops - counts, weights.shape[1]
        corners = torch.minimum(first[starts, None] + torch.arange(m), last[starts, None])
        steps = torch.arange(int(counts.max()))
        pixels = torch.minimum(starts[:, None] + steps, stops[:, None] - 1)
        return cls(corners, counts, pixels, weights[pixels])

    def blocks(self, side: int) -> list['_Cells']:
        return [_Cells(*parts) for parts in zip(*(v.split(side) for v in self), strict=True)]

    def shifted(self) -> tuple[slice, slice, '_Cells']:
        """Return the scores and the pixels of a block, and its cells within both."""
        scores = slice(int(self.corners[0, 0]), int(self.corners[-1, -1]) + 1)
        pixels = slice(int(self.pixels[0, 0]), int(self.pixels[-1, -1]) + 1)
        cells = self._replace(
            corners=self.corners - scores.start, pixels=self.pixels - pixels.start
        )
        return scores, pixels, cells

    def to(self, device: torch.device) -> '_Cells':
        return _Cells(*(values.to(device) for values in self))

    def matrix(self, scores: int) -> Tensor:
        """Return the weights of all pixels as a matrix (pixels, ``scores``)."""
        matrix = self.weights.new_zeros(int(self.counts.sum()), scores)
        places = self.pixels[..., None].expand_as(self.weights)
        columns = self.corners[:, None].expand_as(self.weights)
        is_pixel = torch.arange(self.pixels.shape[1], device=matrix.device) < self.counts[:, None]
        chosen = places[is_pixel], columns[is_pixel]
        return matrix.index_put_(chosen, self.weights[is_pixel], accumulate=True)


def labels_of_resized(scores: Tensor, rows: Sampling, columns: Sampling) -> Tensor:
    """Return the class with the largest score at each pixel of resized scores.

    The labels equal ``F.interpolate(scores[None], (H, W), mode='bilinear', ...)[0].argmax(0)`` for
    the samplings of :func:`bilinear`. If the scores of two classes differ by less than the rounding
    errors of the interpolation, either may be returned. Blocks of cells in which most classes can
    win are interpolated completely. The memory does not depend on the size of the result.

    Args:
        scores: The scores of two or more classes, in any memory format.
        rows: The H rows of pixels.
        columns: The W columns of pixels.

    Shape:
        - scores: (K, h, w)
        - output: (H, W), uint8 for up to 256 classes, otherwise int64

    Example:
        >>> scores = torch.tensor([[[0.0, 1.0]], [[0.6, 0.6]]])
        >>> labels_of_resized(scores, bilinear(1, [1], False), bilinear(2, [4], False))
        tensor([[1, 1, 0, 0]], dtype=torch.uint8)
    """
    dtype = torch.uint8 if len(scores) <= 256 else torch.long
    labels = scores.new_empty(len(rows.first), len(columns.first), dtype=dtype)
    side = BLOCK if scores.device.type == 'cpu' else BLOCK_OF_GPU
    of_columns = [block.shifted() for block in _Cells.of(columns).blocks(side)]
    of_columns = [(*spans, cells.to(scores.device)) for *spans, cells in of_columns]
    for block in _Cells.of(rows).blocks(side):
        score_rows, pixel_rows, y = block.shifted()
        y = y.to(scores.device)
        for score_columns, pixel_columns, x in of_columns:
            values = scores[:, score_rows, score_columns]
            labels[pixel_rows, pixel_columns] = _labels_of_block(values, y, x, dtype)
    return labels


def _labels_of_block(scores: Tensor, y: _Cells, x: _Cells, dtype: torch.dtype) -> Tensor:
    winners = scores.max(0).indices  # the first one of equal scores, as everywhere below
    corners = list(product(range(y.corners.shape[1]), range(x.corners.shape[1])))
    at_corners = torch.stack([winners[y.corners[:, i, None], x.corners[:, j]] for i, j in corners])
    labels = at_corners[0].to(dtype)
    labels = labels.repeat_interleave(y.counts, 0).repeat_interleave(x.counts, 1)
    of_rows, of_columns = (at_corners[1:] != at_corners[0]).any(0).nonzero(as_tuple=True)
    if not len(of_rows):
        return labels
    at_corners = at_corners[:, of_rows, of_columns].mT  # (n, corners)
    cells = y.corners[of_rows], x.corners[of_columns]
    places = torch.stack([cells[0][:, i] * scores.shape[2] + cells[1][:, j] for i, j in corners])
    taken = _taken(scores, places)
    of_winners = taken.gather(2, at_corners.expand(len(corners), -1, -1))
    can_win = taken.amax(0) >= of_winners.amin(0).amax(1, keepdim=True)
    if int(can_win.sum()) * COST > len(scores) * len(y.counts) * len(x.counts):
        return _labels_of_all(scores, y, x, dtype)
    candidates = _Candidates.of(taken, can_win, at_corners, of_winners)
    best, order = candidates.best(y.weights[of_rows], x.weights[of_columns])
    pixels = y.pixels[of_rows[order], :, None], x.pixels[of_columns[order], None]
    labels[pixels] = best.to(dtype)
    return labels


def _taken(scores: Tensor, places: Tensor) -> Tensor:
    """Return the scores (corners, n, K) at places (corners, n)."""
    if scores.stride(0) == 1:  # channels-last
        taken = scores.permute(1, 2, 0).flatten(0, 1).index_select(0, places.flatten())
        return taken.view(*places.shape, -1)
    taken = scores.flatten(1).index_select(1, places.flatten())
    return taken.view(-1, *places.shape).permute(1, 2, 0)


class _Candidates(NamedTuple):
    """The classes that may win in each of n cells, in the order of the cells and of the classes.

    Attributes:
        cells: (P,), the index of the cell.
        classes: (P,)
        scores: (corners, P), the scores of the class at the corners of the cell.
    """

    cells: Tensor
    classes: Tensor
    scores: Tensor

    @classmethod
    def of(
        cls, scores: Tensor, can_win: Tensor, winners: Tensor, of_winners: Tensor
    ) -> '_Candidates':
        """Return the classes that no winner of a corner is above at all corners.

        Args:
            scores: (corners, n, K).
            can_win: (n, K), which classes to compare.
            winners: (n, corners), the class that wins at each corner.
            of_winners: (corners, n, corners), the scores of the winners of all corners.
        """
        cells, classes = can_win.nonzero(as_tuple=True)
        scores = scores[:, cells, classes]
        is_left = torch.ones_like(classes, dtype=torch.bool)
        for number in range(len(scores)):
            is_before = winners[cells, number] < classes
            is_above = torch.ones_like(is_left)
            for own, of_corner in zip(scores, of_winners[..., number], strict=True):
                other = of_corner[cells]
                is_above &= (other > own) | ((other == own) & is_before)
            is_left &= ~is_above
        return cls(cells[is_left], classes[is_left], scores[:, is_left])

    def best(self, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the class at each pixel of the cells, (n, h, w), in an order of the cells.

        Args:
            y: (n, h, m), the weights of the rows of the cells.
            x: (n, w, m), the weights of the columns.
        """
        counts = self.cells.bincount(minlength=len(y))
        starts = counts.cumsum(0) - counts
        counts, order = counts.sort(descending=True, stable=True)
        starts, y, x = starts[order], y[order], x[order]
        ends = (counts[None] > torch.arange(int(counts[0]), device=y.device)[:, None]).sum(1)
        labels = best = None
        for number, end in enumerate(ends.tolist()):
            chosen = starts[:end] + number
            values = _interpolated(self.scores[:, chosen], y[:end], x[:end])
            classes = self.classes[chosen, None, None]
            if best is None:
                best, labels = values, classes.expand_as(values).clone()
                continue
            is_better = values > best[:end]
            best[:end] = torch.maximum(best[:end], values)
            labels[:end] = torch.where(is_better, classes, labels[:end])
        return labels, order


def _interpolated(scores: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Interpolate n scores at corners (corners, n), in the order of ``F.interpolate``."""
    total, of_columns = None, x.shape[2]
    for i in range(y.shape[2]):
        of_row = scores[i * of_columns : (i + 1) * of_columns]
        row = sum(value[:, None] * x[..., j] for j, value in enumerate(of_row))
        part = row[:, None] * y[..., i, None]
        total = part if total is None else total + part
    return total


def _labels_of_all(scores: Tensor, y: _Cells, x: _Cells, dtype: torch.dtype) -> Tensor:
    """Interpolate the scores of all classes, a few classes at a time."""
    A, B = y.matrix(scores.shape[1]), x.matrix(scores.shape[2])
    best, labels, start = None, None, 0
    for part in scores.split(max(1, MAX_SCORES // (len(A) * len(B)))):
        values, indices = (A @ part.to(A.dtype) @ B.mT).max(0)
        if best is None:
            best, labels = values, indices
        else:
            labels = torch.where(values > best, indices + start, labels)
            best = torch.maximum(best, values)
        start += len(part)
    return labels.to(dtype)
