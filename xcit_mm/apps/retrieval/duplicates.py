"""Near-copies of images: resized, cropped or compressed versions."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from ...base.files import write_json, write_whole
from ...base.progress import ImageProgress
from ...predict.embedder import Embedder
from .descriptor_files import Described
from .nearest import nearest_vectors
from .picture_match import similarity, small_picture
from .run import Embedding, EmbedOptions, pictures
from .sheet import draw_sheet

NEIGHBORS = 10  # candidates per image, for each of two vectors
MAX_DRAWN = 10  # copies of an image on the sheet
THUMBNAIL = 8  # side in pixels


class Pair(NamedTuple):
    """Two near-copies, as indices of images, and their similarity."""

    first: int
    second: int
    score: float


def find_duplicates(
    embedder: Embedder, inputs: Sequence[str], options: EmbedOptions
) -> tuple[dict[str, Any], list[str]]:
    """Find near-copies among images, and write and draw them according to the options.

    Returns:
        The pairs and groups, for JSON, and a sentence about each input that was left out.
    """
    embedding = Embedding(embedder, options)
    sources = embedding.sources(inputs)
    embedding.prepare(sources)
    described = embedding.describe(sources)
    picture = pictures(embedder)
    small = [small_picture(picture(name)) for name in described.names]
    pairs = similar_pairs(described.vectors, small, options.threshold)
    groups = groups_of(pairs, described)
    number = {index: n for n, group in enumerate(groups, 1) for index in group}
    names = described.names
    rows = [dict(group=number[i], first=names[i], second=names[j], score=s) for i, j, s in pairs]
    rows.sort(key=lambda row: (row['group'], -row['score'], row['first'], row['second']))
    content = dict(
        images=len(names),
        threshold=options.threshold,
        pairs=rows,
        groups=[[names[index] for index in group] for group in groups],
    )
    if options.out is not None:
        write_copies(options.out, content)
    if options.sheet is not None and groups:
        results = [
            (
                names[head],
                [
                    (names[index], similarity(small[head], small[index]))
                    for index in rest[:MAX_DRAWN]
                ],
            )
            for head, *rest in groups
        ]
        draw_sheet(options.sheet, results, picture)
    return content, embedding.problems


def similar_pairs(vectors: np.ndarray, small: Sequence[np.ndarray], threshold: float) -> list[Pair]:
    """Return the pairs of images that look alike.

    Each image is compared only with its nearest images, both by descriptor and by thumbnail. The
    thumbnails make this work even with the descriptors of an untrained network.

    Args:
        vectors: The descriptors (n, D).
        small: The images from :func:`~xcit_mm.apps.retrieval.picture_match.small_picture`.
        threshold: The smallest similarity of a pair.
    """
    thumbnails = [cv2.resize(x, (THUMBNAIL,) * 2, interpolation=cv2.INTER_AREA) for x in small]
    candidates = sorted(
        {*_neighbors(vectors), *_neighbors(np.stack(thumbnails).reshape(len(small), -1))}
    )
    pairs = []
    with ImageProgress() as progress:
        progress.expect(len(candidates))
        for i, j in candidates:
            score = similarity(small[i], small[j])
            if score >= threshold:
                pairs.append(Pair(i, j, score))
            progress.count()
    return pairs


def _neighbors(vectors: np.ndarray) -> Iterable[tuple[int, int]]:
    """Yield pairs of vectors that are close to each other after subtracting the mean."""
    centered = vectors - vectors.mean(0)
    lengths = np.linalg.norm(centered, axis=1, keepdims=True)
    unit = (centered / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    ranks, _ = nearest_vectors(unit, unit, NEIGHBORS + 1)
    for i, row in enumerate(ranks):
        for j in map(int, row):
            if i != j:
                yield min(i, j), max(i, j)


def groups_of(pairs: Sequence[Pair], described: Described) -> list[list[int]]:
    """Return groups of images that pairs connect, each with its largest image first."""
    parents: dict[int, int] = {}

    def root(index: int) -> int:
        while parents.setdefault(index, index) != index:
            parents[index] = index = parents[parents[index]]
        return index

    for i, j, _ in pairs:
        first, second = sorted((root(i), root(j)))
        parents[second] = first
    groups: dict[int, list[int]] = {}
    for index in sorted(parents):
        groups.setdefault(root(index), []).append(index)
    for group in groups.values():
        group.sort(key=lambda index: -int(np.prod(described.sizes[index])))
    return list(groups.values())


def write_copies(path: Path, content: dict[str, Any]) -> None:
    """Write pairs as CSV, or pairs and groups as JSON, depending on the suffix."""
    if path.suffix.lower() == '.json':
        write_json(path, content)
        return
    with write_whole(path, 'w') as file:
        writer = csv.DictWriter(file, ('group', 'first', 'second', 'score'), lineterminator='\n')
        writer.writeheader()
        writer.writerows({**row, 'score': f'{row["score"]:.4f}'} for row in content['pairs'])
