"""Regions whose parts in several blocks are put together."""

import numpy as np
import shapely

from ...large.labels.outlines import from_arrays, to_arrays


def joined(parts: list[shapely.Polygon], block: int) -> shapely.Polygon:
    """Return the polygon of a region from its parts in blocks with sides of ``block`` pixels.

    The parts have the same corners where they share a piece of a side of a block. Such pieces are
    left out, and what is left of the rings is linked. ``shapely.coverage_union_all`` returns the
    same polygon, but tests each hole against the outer ring: its time is quadratic.
    """
    corners, rings, _ = to_arrays(shapely.orient_polygons(np.array(parts, object)))
    corners = corners.astype(np.int64)
    shared = _shared(corners, rings, block)
    complete, chains = [], {}
    for start, stop in zip(rings[:-1].tolist(), (rings[1:] - 1).tolist(), strict=True):
        cuts = np.flatnonzero(shared[start:stop])
        ring = corners[start:stop]
        if not len(cuts):
            complete.append(ring)
            continue
        ring = np.roll(ring, -int(cuts[0]) - 1, 0)  # it begins after a piece that is left out
        ends = np.append(cuts[1:] - cuts[0] - 1, len(ring) - 1)
        begin = 0
        for end in ends.tolist():
            if end > begin:
                chains[tuple(ring[begin].tolist())] = ring[begin : end + 1]
            begin = end + 1
    while chains:
        _, chain = chains.popitem()
        linked = [chain]
        while (following := chains.pop(tuple(linked[-1][-1].tolist()), None)) is not None:
            linked.append(following)
        complete += _without_touching(np.concatenate([chain[:-1] for chain in linked]))
    complete.sort(key=_area, reverse=True)  # the outer ring is counterclockwise
    closed = [np.concatenate([ring, ring[:1]]) for ring in complete]
    offsets = np.cumsum([0, *map(len, closed)])
    (polygon,) = from_arrays(
        np.concatenate(closed).astype(float), offsets, np.array([0, len(closed)])
    )
    return polygon


def _shared(corners: np.ndarray, rings: np.ndarray, block: int) -> np.ndarray:
    """Return whether the side that begins at a corner occurs twice, on a side of a block."""
    following = np.roll(corners, -1, 0)
    is_shared = np.zeros(len(corners), bool)
    for axis in (0, 1):
        is_on = (corners[:, axis] == following[:, axis]) & (corners[:, axis] % block == 0)
        is_on[rings[1:] - 1] = False
        sides = np.flatnonzero(is_on)
        along = np.minimum(corners[sides, 1 - axis], following[sides, 1 - axis])
        keys = corners[sides, axis] << 32 | along
        _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        is_shared[sides[counts[inverse] == 2]] = True
    return is_shared


def _without_touching(ring: np.ndarray) -> list[np.ndarray]:
    """Cut a ring (n, 2), without its last corner, into rings that visit no corner twice."""
    numbers = ring[:, 1] << 32 | ring[:, 0]
    _, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    places = np.flatnonzero(counts[inverse] > 1)
    if not len(places):
        return [ring]
    ring, inverse = np.roll(ring, -int(places[0]), 0), np.roll(inverse, -int(places[0]))
    places = places - places[0]
    pieces: list[tuple[int, np.ndarray]] = []
    rings = []
    for start, stop in zip(places.tolist(), [*places[1:].tolist(), len(ring)], strict=True):
        corner = int(inverse[start])
        visited = [number for number, _ in pieces]
        if corner in visited:
            first = visited.index(corner)
            rings.append(np.concatenate([piece for _, piece in pieces[first:]]))
            del pieces[first:]
        pieces.append((corner, ring[start:stop]))
    rings.append(np.concatenate([piece for _, piece in pieces]))
    return rings


def _area(ring: np.ndarray) -> int:
    """Return twice the area of a ring, negative if it is clockwise."""
    x, y = ring.T
    return int((x * np.roll(y, -1) - np.roll(x, -1) * y).sum())
