"""Evaluation of an embedder on image retrieval benchmarks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import UserError
from ...network.weights.published import BENCHMARKS, RETRIEVAL, name_in_release
from ...predict.embedder import Embedder
from .descriptors import ASMK
from .holidays import read_holidays
from .nearest import AsmkIndex, nearest_vectors
from .ranking import Benchmark, Box, evaluate
from .revisited import SIZES, read_revisited
from .run import Embedding, EmbedOptions


def run_benchmark(embedder: Embedder, options: EmbedOptions) -> dict[str, Any]:
    """Rank the images of a benchmark for each query, and evaluate the rankings.

    Returns:
        The results of each setting in percent, for JSON. They include the figures of the paper if
        the checkpoint is a released file and the benchmark is complete.

    Raises:
        UserError: If an image or the ground truth is missing, invalid or unreadable.
    """
    name, folder = options.benchmark
    benchmark = _read(name, Path(folder))
    embedding = Embedding(embedder, options)
    embedding.prepare(benchmark.images)
    rankings = _rankings(embedding, benchmark)
    k = None if embedding.codebook is None else embedding.codebook.size
    model = name_in_release(embedder.checkpoint, embedder.description['model'])
    row = RETRIEVAL.get((model, options.descriptor, k, options.size), ())
    figures = dict(zip(BENCHMARKS, row, strict=False))
    content: dict[str, Any] = dict(
        benchmark=name,
        images=len(benchmark.images),
        queries=len(benchmark.queries),
        descriptor=options.descriptor,
        k=k,
        size=options.size,
        settings={},
    )
    for setting, judgments in benchmark.judgments.items():
        quality = evaluate(rankings, judgments)
        # A setting without any query that has positives has no value.
        value = None if not quality.queries else 100 * quality.mean_average_precision
        precision = {} if value is None else {k: 100 * v for k, v in quality.precision.items()}
        content['settings'][setting] = dict(
            queries=quality.queries,
            mean_average_precision=value,
            precision=precision,
            published=figures.get((name, setting)) if benchmark.is_whole else None,
        )
    return content


def _read(name: str, folder: Path) -> Benchmark:
    if name not in (*SIZES, 'holidays'):
        raise UserError(f'--benchmark {name}: it is not one of {", ".join(SIZES)} and holidays')
    if not folder.is_dir():
        raise UserError(f'--benchmark {name} {folder}: it is not a folder')
    return read_holidays(folder) if name == 'holidays' else read_revisited(name, folder)


def _rankings(embedding: Embedding, benchmark: Benchmark) -> Sequence[np.ndarray]:
    images, queries, boxes = benchmark.images, benchmark.queries, benchmark.boxes
    rows = [images.index(query) for query in queries] if not boxes else []
    if embedding.options.descriptor == ASMK:
        local = _of_all(embedding, images)
        of_queries = _of_all(embedding, queries, boxes) if boxes else [local[row] for row in rows]
        return AsmkIndex(embedding.codebook, local).search(of_queries, len(images))[0]
    vectors = embedding.describe(images).vectors
    _require_all(embedding)
    of_queries = embedding.describe(queries, boxes).vectors if boxes else vectors[rows]
    _require_all(embedding)
    return nearest_vectors(vectors, of_queries, len(images))[0]


def _of_all(
    embedding: Embedding, images: Sequence[str], boxes: Sequence[Box] = ()
) -> list[np.ndarray]:
    _, local = embedding.local(images, boxes)
    _require_all(embedding)
    return local


def _require_all(embedding: Embedding) -> None:
    """Refuse a benchmark with images that were left out."""
    if embedding.problems:
        raise UserError(
            f'{embedding.problems[0]}; a benchmark needs all of its images: replace the file'
        )
