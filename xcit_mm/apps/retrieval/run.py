"""Descriptors for the inputs of tools/embed.py, and search among them."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from ...base.environment import require
from ...base.errors import ArgumentError, UserError, printable
from ...base.files import require_writable_file
from ...base.progress import ImageProgress
from ...predict.embedder import Embedder
from ...predict.folders import VIDEOS
from ...predict.sources import find_inputs
from .codebook import TRAIN_TOKENS, Codebook, sample
from .descriptor_files import SUFFIXES, Described, read_descriptors, write_descriptors
from .descriptors import ASMK, WITH_CODEBOOK, describe
from .image_tokens import ImageTokens, image_tokens
from .nearest import AsmkIndex, nearest_vectors
from .ranking import Box
from .sheet import Found, draw_sheet

Value = TypeVar('Value')
COPIES = '.csv', '.json'  # suffixes of a file of near-copies


@dataclass
class EmbedOptions:
    """The options of tools/embed.py, whose help describes them."""

    descriptor: str = 'token'  # one of DESCRIPTORS
    size: int | str = 768  # of the longer side in pixels, or 'native'
    k: int | None = None  # None: WITH_CODEBOOK of the descriptor
    train: Sequence[str] = ()  # empty: the inputs
    codebook: Path | None = None
    out: Path | None = None
    search: Sequence[str] = ()
    index: Path | None = None
    top: int = 5
    sheet: Path | None = None
    duplicates: bool = False
    threshold: float = 0.8  # measured: 0.9 for copies, 0.4 for other images
    benchmark: tuple[str, str] | None = None


class Embedding:
    """Descriptors of images, computed by one embedder.

    Args:
        embedder: The network, with ``fit='longer'``.
        options: See :class:`EmbedOptions`.

    Attributes:
        problems: A sentence about each input that was left out. It is also shown.
        codebook: The codebook after :meth:`prepare`, if the descriptor needs one.
    """

    def __init__(self, embedder: Embedder, options: EmbedOptions) -> None:
        self.embedder, self.options = embedder, options
        self.problems: list[str] = []
        self.codebook: Codebook | None = None

    def prepare(self, inputs: Sequence[str]) -> None:
        """Read the codebook, or learn it from the training images or, without them, the inputs."""
        options = self.options
        if options.descriptor not in WITH_CODEBOOK:
            return
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())
        path = options.codebook
        if path is not None and path.exists():
            self.codebook = Codebook.load(path)
            self.codebook.require_width(self.embedder.dim, str(path))
            return
        sources = self.sources(options.train) if options.train else list(inputs)
        each = max(1, TRAIN_TOKENS // len(sources))
        samples = self._each(sources, lambda image: sample(image.tiles(), each))
        tokens = np.concatenate([tokens for _, _, tokens in samples])
        self.codebook = Codebook.learn(tokens, options.k or WITH_CODEBOOK[options.descriptor])
        if path is not None:
            self.codebook.save(path)

    def sources(self, arguments: Sequence[str]) -> list[str]:
        """Return the images that arguments name, or raise a UserError if there are none."""
        inputs = find_inputs(arguments, lambda _: False)
        videos = [s for s in inputs.sources.values() if s.lower().endswith(VIDEOS)]
        sources = [s for s in inputs.sources.values() if s not in videos]
        problems = [*inputs.problems, *(f'{video} is a video; left out' for video in videos)]
        if not sources:
            raise UserError('; '.join(problems))
        for sentence in (*inputs.notes, *problems):
            print(printable(sentence), file=sys.stderr)
        self.problems += problems
        return sources

    def describe(self, sources: Sequence[str], boxes: Sequence[Box] = ()) -> Described:
        """Compute the descriptors of images, or of one box in each image."""
        kind, codebook = self.options.descriptor, self.codebook
        rows = self._each(sources, lambda image: describe(image, kind, codebook), boxes)
        names, sizes, vectors = (list(column) for column in zip(*rows, strict=True))
        return Described(names, sizes, np.stack(vectors))

    def local(
        self, sources: Sequence[str], boxes: Sequence[Box] = ()
    ) -> tuple[list[str], list[np.ndarray]]:
        """Compute the local descriptors of images, or of one box in each image."""

        def local(image: ImageTokens) -> np.ndarray:
            return np.concatenate([self.codebook.local(tokens) for tokens in image.tiles()])

        rows = self._each(sources, local, boxes)
        return [name for name, _, _ in rows], [vectors for _, _, vectors in rows]

    def _each(
        self,
        sources: Sequence[str],
        compute: Callable[[ImageTokens], Value],
        boxes: Sequence[Box] = (),
    ) -> list[tuple[str, tuple[int, int], Value]]:
        """Return the name, the size and the computed value of each readable image."""
        with ImageProgress() as progress:
            progress.expect(len(sources))
            rows = []
            for source, box in zip_longest(sources, boxes):
                try:
                    image = image_tokens(self.embedder, source, self.options.size, box)
                    rows.append((source, image.size, compute(image)))
                except UserError as error:
                    why = str(error)
                    progress.give_up(why if source in why else f'{source}: {why}')
                else:
                    progress.count()
        self.problems += [p for p in progress.problems if p not in self.problems]
        if not rows:
            raise UserError(f'no image can be used: {progress.problems[0]}')
        return rows


def check_options(options: EmbedOptions) -> None:
    """Refuse options that do not fit together, and files that cannot be written."""
    task = options.search or options.duplicates or options.benchmark
    is_asmk = options.descriptor == ASMK
    if is_asmk and (options.out or options.index or not (options.search or options.benchmark)):
        raise ArgumentError(
            '--descriptor asmk compares local descriptors and has no vector: name queries with '
            '--search, without --out and --index, or use --benchmark'
        )
    if not (task or options.out):
        raise ArgumentError(
            'nothing to do: name a file with --out, or queries with --search, or use --duplicates '
            'or --benchmark'
        )
    if options.descriptor in WITH_CODEBOOK or task:
        require('faiss')
    if is_asmk:
        require('asmk')
    suffixes = COPIES if options.duplicates else SUFFIXES
    for option, path, allowed in (
        ('--out', options.out, suffixes),
        ('--sheet', options.sheet, ('.png',)),
    ):
        if path is not None:
            if path.suffix.lower() not in allowed:
                raise ArgumentError(
                    f'{option} {path}: the file has to end in {" or ".join(allowed)}'
                )
            require_writable_file(path)


def embed(
    embedder: Embedder, inputs: Sequence[str], options: EmbedOptions
) -> tuple[dict[str, Any], list[str]]:
    """Compute descriptors of images, write them and search among them.

    Returns:
        A summary of the results, for JSON, and a sentence about each input that was left out.
    """
    embedding = Embedding(embedder, options)
    sources = embedding.sources(inputs) if options.index is None else []
    queries = embedding.sources(options.search) if options.search else []
    embedding.prepare(sources or queries)
    content: dict[str, Any] = dict(descriptor=options.descriptor, size=options.size)
    if options.descriptor == ASMK:
        results = _search_asmk(embedding, sources, queries)
    else:
        # Queries come first, because there are fewer that could be wrong.
        queried = embedding.describe(queries) if queries else None
        index = options.index
        described = embedding.describe(sources) if index is None else read_descriptors(index)
        content |= dict(images=len(described.names), dimensions=described.vectors.shape[1])
        if options.out is not None:
            write_descriptors(options.out, described)
        if queried is None:
            return content, embedding.problems
        nearest = nearest_vectors(described.vectors, queried.vectors, options.top)
        results = _found(queried.names, described.names, *nearest)
    content['found'] = [
        dict(query=query, images=[dict(name=name, score=score) for name, score in images])
        for query, images in results
    ]
    if options.sheet is not None:
        draw_sheet(options.sheet, results, pictures(embedder))
    return content, embedding.problems


def _search_asmk(
    embedding: Embedding, sources: Sequence[str], queries: Sequence[str]
) -> list[Found]:
    query_names, query_local = embedding.local(queries)
    names, local = embedding.local(sources)
    index = AsmkIndex(embedding.codebook, local)
    return _found(query_names, names, *index.search(query_local, embedding.options.top))


def _found(
    queries: Sequence[str], names: Sequence[str], ranks: np.ndarray, scores: np.ndarray
) -> list[Found]:
    return [
        (query, [(names[i], float(s)) for i, s in zip(row, values, strict=True)])
        for query, row, values in zip(queries, ranks, scores, strict=True)
    ]


def pictures(embedder: Embedder) -> Callable[[str], np.ndarray]:
    """Return a function that reads an image with any channels as RGB (H, W, 3) uint8."""
    bands = embedder.reader.bands

    def picture(name: str) -> np.ndarray:
        image = embedder.read(name)
        return image if bands is None else bands.picture(image)

    return picture
