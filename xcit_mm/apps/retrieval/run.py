"""Descriptors for the inputs of tools/embed.py, and search among them."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ...base.environment import require
from ...base.errors import ArgumentError, UserError, printable
from ...base.files import require_writable_file
from ...base.processes import digest_of_module
from ...base.progress import ImageProgress
from ...predict.embedder import Embedder
from ...predict.folders import VIDEOS
from ...predict.sources import find_inputs
from .codebook import TRAIN_TOKENS, Codebook, require_k, sample
from .descriptor_files import Described, read_descriptors, require_out, write_descriptors
from .descriptors import ASMK, WITH_CODEBOOK, describe
from .image_tokens import ImageTokens, image_tokens, torch_threads_for_faiss
from .nearest import AsmkIndex, nearest_vectors
from .ranking import Box
from .sheet import Found, draw_sheet

Value = TypeVar('Value')
BENCHMARKS = 'roxford5k', 'rparis6k', 'holidays'


@dataclass
class EmbedOptions:
    """The options of tools/embed.py.

    Attributes:
        descriptor: One of ``DESCRIPTORS``.
        size: Length of the longer side in pixels, or 'native'.
        k: The number of centers. None: the default of the descriptor.
        train: Images for learning the codebook. Empty: the inputs.
        codebook: The codebook file. It is read if it exists, and written otherwise.
        out: The output file.
        search: The query images.
        index: A file of descriptors to search, instead of the inputs.
        top: The number of results for each query.
        sheet: The file for the sheet of pictures.
        duplicates: Whether to find near-copies among the inputs.
        threshold: The lowest similarity of near-copies, from 0 to 1. None: the default.
        benchmark: One of ``BENCHMARKS`` to evaluate, and its folder.
    """

    descriptor: str = 'token'
    size: int | str = 768
    k: int | None = None
    train: Sequence[str] = ()
    codebook: Path | None = None
    out: Path | None = None
    search: Sequence[str] = ()
    index: Path | None = None
    top: int = 5
    sheet: Path | None = None
    duplicates: bool = False
    threshold: float | None = None
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
        check_options(options)
        self.embedder, self.options = embedder, options
        self.problems: list[str] = []
        self.codebook: Codebook | None = None

    def prepare(self, inputs: Sequence[str]) -> None:
        """Read the codebook, or learn it from the training images or, without them, the inputs."""
        options = self.options
        if options.descriptor not in WITH_CODEBOOK:
            return
        torch_threads_for_faiss()
        path = options.codebook
        if path is not None and path.exists():
            self.codebook = Codebook.load(path)
            self.codebook.require_width(self.embedder.dim, str(path))
            if options.k not in (None, self.codebook.size):
                raise UserError(
                    f'--k {options.k}: the codebook {path} has {self.codebook.size} centers; '
                    'leave --k out, or name a new file with --codebook'
                )
            return
        sources = self.sources(options.train) if options.train else list(inputs)
        if not sources:
            raise UserError('a codebook is learned from images: name some with --train')
        if len(sources) == 1:
            raise UserError(
                f'{sources[0]}: a codebook of one image cannot tell images apart: name more with '
                '--train, or a file with --codebook'
            )
        each = max(1, TRAIN_TOKENS // len(sources))
        samples = self._each(sources, lambda image: sample(image.tiles(), each))
        tokens = np.concatenate([tokens for _, _, tokens in samples])
        self.codebook = Codebook.learn(tokens, options.k or WITH_CODEBOOK[options.descriptor])
        if path is not None:
            self.codebook.save(path)

    def sources(self, arguments: Sequence[str]) -> list[str]:
        """Return the images that arguments name, or raise a UserError if there are none."""
        found = find_inputs(arguments, lambda _: False)
        videos = [s for s in found.sources.values() if s.lower().endswith(VIDEOS)]
        sources = [s for s in found.sources.values() if s not in videos]
        problems = [*found.problems, *(f'{video} is a video; left out' for video in videos)]
        if not sources:
            raise UserError('; '.join(problems))
        for sentence in (*found.notes, *problems):
            print(printable(sentence), file=sys.stderr)
        self.problems += problems
        return sources

    def describe(self, sources: Sequence[str], boxes: Sequence[Box] = ()) -> Described:
        """Compute the descriptors of images, or of one box in each image."""
        kind, codebook = self.options.descriptor, self.codebook
        rows = self._each(sources, lambda image: describe(image, kind, codebook), boxes)
        names, sizes, vectors = (list(column) for column in zip(*rows, strict=True))
        return Described(names, sizes, np.stack(vectors), self.made_with)

    @property
    def made_with(self) -> dict[str, str]:
        """What the vectors depend on besides the images. Vectors of equal values are comparable."""
        made_with = dict(descriptor=self.options.descriptor, size=str(self.options.size))
        reader = self.embedder.reader
        settings = digest_of_module(reader.normalize, f'{reader.is_reversed}')
        made_with['network'] = digest_of_module(self.embedder.model, settings)
        if self.codebook is not None:
            made_with['codebook'] = self.codebook.digest
        return made_with

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
            rows = list(self._computed(sources, compute, boxes, progress))
        self.problems += [p for p in progress.problems if p not in self.problems]
        if not rows:
            raise UserError(f'no image can be used: {progress.problems[0]}')
        return rows

    def _computed(
        self,
        sources: Sequence[str],
        compute: Callable[[ImageTokens], Value],
        boxes: Sequence[Box],
        progress: ImageProgress,
    ) -> Iterator[tuple[str, tuple[int, int], Value]]:
        for source, box in zip_longest(sources, boxes):
            try:
                image = image_tokens(self.embedder, source, self.options.size, box)
                value = compute(image)
            except UserError as error:
                why = str(error)
                progress.give_up(why if source in why else f'{source}: {why}')
                continue
            yield source, image.size, value
            progress.count()


def check_options(options: EmbedOptions) -> None:
    """Refuse options that do not fit together, and files that cannot be written."""
    uses_codebook = options.descriptor in WITH_CODEBOOK
    _require_one_task(options)
    if not uses_codebook and (options.codebook or options.train or options.k is not None):
        raise ArgumentError(
            f'--codebook, --train and --k are for {" and ".join(WITH_CODEBOOK)}: leave them out of '
            f'--descriptor {options.descriptor}'
        )
    if options.k is not None:
        require_k(options.k)
    if options.descriptor == ASMK and (
        options.out or options.index or not (options.search or options.benchmark)
    ):
        raise ArgumentError(
            '--descriptor asmk compares local descriptors and has no vector: name queries with '
            '--search, without --out and --index, or use --benchmark'
        )
    if not options.search and (options.index or (options.sheet and not options.duplicates)):
        remedy = 'name queries with --search'
        if options.index is None:
            raise ArgumentError(f'--sheet draws what is found: {remedy}, or use --duplicates')
        raise ArgumentError(f'--index is for a search: {remedy}')
    has_task = options.search or options.duplicates or options.benchmark
    if not has_task and options.out is None:
        raise ArgumentError(
            'nothing to do: name a file with --out, or queries with --search, or use --duplicates '
            'or --benchmark'
        )
    if options.index is not None and options.out is not None:
        raise ArgumentError('--index and --out cannot be combined: leave one of them out')
    if uses_codebook or has_task:
        require('faiss')
    if options.descriptor == ASMK:
        require('asmk')
    if options.duplicates:
        _require_copies(options)
    elif options.out is not None:
        require_out(options.out)
    if options.sheet is not None:
        if options.sheet.suffix.lower() != '.png':
            raise ArgumentError(f'--sheet {options.sheet}: the file has to end in .png')
        require_writable_file(options.sheet)


def _require_one_task(options: EmbedOptions) -> None:
    """Refuse tasks and options that cannot be combined."""
    tasks = dict(search=options.search, duplicates=options.duplicates, benchmark=options.benchmark)
    named = [f'--{name}' for name, value in tasks.items() if value]
    if len(named) > 1:
        raise ArgumentError(f'{" and ".join(named)} cannot be combined: name one of them')
    if options.benchmark and options.benchmark[0] not in BENCHMARKS:
        raise ArgumentError(
            f'--benchmark {options.benchmark[0]}: not one of {", ".join(BENCHMARKS)}'
        )
    if options.benchmark and options.out:
        raise ArgumentError('--benchmark writes no descriptors: leave --out out, or use --json')
    if options.threshold is not None and not options.duplicates:
        raise ArgumentError('--threshold is for near-copies: add --duplicates, or leave it out')
    if options.threshold is not None and not 0 <= options.threshold <= 1:
        raise ArgumentError(
            f'--threshold {options.threshold:g} is no similarity: name a number from 0 to 1'
        )


def _require_copies(options: EmbedOptions) -> None:
    """Refuse an output file for near-copies that has another suffix or cannot be written."""
    if options.out is None:
        return
    if options.out.suffix.lower() not in ('.csv', '.json'):
        raise ArgumentError(
            f'--out {options.out}: the file of near-copies has to end in .csv or .json'
        )
    require_writable_file(options.out)


def embed(
    embedder: Embedder, inputs: Sequence[str], options: EmbedOptions
) -> tuple[dict[str, Any], list[str]]:
    """Compute descriptors of images, write them and search among them.

    Returns:
        A summary of the results, for JSON, and a sentence about each input that was left out.
    """
    embedding = Embedding(embedder, options)
    if options.index is not None and inputs:
        raise ArgumentError('--index replaces the inputs: name one or the other')
    if options.index is None and not inputs:
        raise ArgumentError('no inputs: name files, folders or URLs, or search in --index FILE')
    sources = embedding.sources(inputs) if inputs else []
    queries = embedding.sources(options.search) if options.search else []
    index = None if options.index is None else read_descriptors(options.index)
    embedding.prepare(sources or queries)
    if index is not None:
        _require_comparable(options.index, index.made_with, embedding.made_with)
    content: dict[str, Any] = dict(descriptor=options.descriptor, size=options.size)
    if options.descriptor == ASMK:
        query_names, query_local = embedding.local(queries)
        names, local = embedding.local(sources)
        ranks, scores = AsmkIndex(embedding.codebook, local).search(query_local, options.top)
    else:
        if queries:  # first, because there are fewer that could be wrong
            query_names, _, vectors, _ = embedding.describe(queries)
        described = embedding.describe(sources) if index is None else index
        names = described.names
        content |= dict(images=len(names), dimensions=described.vectors.shape[1])
        if options.out is not None:
            write_descriptors(options.out, described)
        if not queries:
            return content, embedding.problems
        if vectors.shape[1] != described.vectors.shape[1]:
            raise UserError(
                f'--index {options.index} has descriptors of {described.vectors.shape[1]} '
                f'dimensions, but the queries have {vectors.shape[1]}: write it again with --out'
            )
        ranks, scores = nearest_vectors(described.vectors, vectors, options.top)
    found: list[Found] = [
        (query, [(names[i], float(s)) for i, s in zip(row, values, strict=True)])
        for query, row, values in zip(query_names, ranks, scores, strict=True)
    ]
    content['found'] = [
        dict(query=query, images=[dict(name=name, score=score) for name, score in images])
        for query, images in found
    ]
    if options.sheet is not None:
        draw_sheet(options.sheet, found, pictures(embedder))
    return content, embedding.problems


def _require_comparable(path: Path, before: dict[str, str], now: dict[str, str]) -> None:
    """Refuse to search in vectors that are made with other options or another checkpoint."""
    for name in {**now, **before}:
        if before.get(name) != now.get(name):
            raise UserError(
                f'--index {path} was written with {name} {before.get(name)}, but the queries have '
                f'{name} {now.get(name)}: use the options, the checkpoint and the codebook that '
                'it was written with'
            )


def pictures(embedder: Embedder) -> Callable[[str], np.ndarray]:
    """Return a function that reads an image with any channels as RGB (H, W, 3) uint8."""
    bands = embedder.reader.bands

    def picture(name: str) -> np.ndarray:
        image = embedder.read(name)
        return image if bands is None else bands.picture(image)

    return picture
