"""Accuracies of k-NN and a linear classifier on the tokens of labeled images."""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...base.progress import ImageProgress
from ...data.datasets.image_folders import ClassFolders
from ...network.weights.published import DINO, name_in_release
from ...predict.embedder import Embedder
from ...predict.results.neighbors import nearest_neighbors, neighbor_votes, top_accuracy
from .linear import linear_scores

SYNSET = re.compile(r'n\d{8}')  # how folders of ImageNet's classes are named
KS = (10, 20, 100, 200)
PUBLISHED_K = 20
NUM_CLASSES = 1000


class Labeled(NamedTuple):
    """The tokens (n, C) and the classes (n,) of the readable images of a folder."""

    tokens: Tensor
    labels: Tensor
    bad: dict[str, str]  # path to error


def report_probe(
    embedder: Embedder,
    train: Path,
    val: Path,
    sample: int | None = None,
    batch_size: int = 64,
    workers: int = 0,
) -> tuple[str, dict[str, Any]]:
    """Classify the images in one folder by the labeled images in another folder.

    Both folders have a subfolder of images for each class. ``sample`` is the number of images to
    draw at random from each folder, the same ones in every call; None: all images.

    Returns:
        The lines to print, and the content of the JSON file.

    Raises:
        UserError: If the folders have other classes than each other, or no readable image.
    """
    to_train, classes = _samples(train, None, sample)
    to_classify, _ = _samples(val, classes, sample)
    labeled = _labeled(embedder, to_train, batch_size, workers)
    queries = _labeled(embedder, to_classify, batch_size, workers)
    knn = _knn(labeled, queries, len(classes))
    scores = linear_scores(labeled.tokens, labeled.labels, queries.tokens, len(classes))
    linear = {f'top{n}': top_accuracy(scores, queries.labels, n) for n in (1, 5)}
    name = name_in_release(embedder.checkpoint, embedder.description['model'])
    is_imagenet = len(classes) == NUM_CLASSES and all(map(SYNSET.fullmatch, classes))
    figures = DINO.get(name) if is_imagenet else None
    content = embedder.description | dict(
        train_images=len(labeled.labels),
        images=len(queries.labels),
        classes=len(classes),
        knn=knn,
        linear=linear,
        published=None if figures is None else {name: figures._asdict()},
        bad=labeled.bad | queries.bad,
    )
    lines = [
        f'{len(queries.labels):,} images of {len(classes):,} classes, by {len(labeled.labels):,} '
        'labeled images'
    ]
    for k, accuracy in knn.items():
        lines.append(_line(f'k-NN, k = {k}', accuracy))
        if figures is not None and k == str(PUBLISHED_K):
            lines[-1] += f'; published {figures.knn} for {name}'
    lines.append(_line('linear', linear))
    if figures is not None:
        lines[-1] += f'; published {figures.linear} for {name}'
    return '\n'.join(lines), content


def _samples(
    folder: Path, classes: Sequence[str] | None, sample: int | None
) -> tuple[list[dict], tuple[str, ...]]:
    """Return the images with their labels, and the class names."""
    metainfo = None if classes is None else dict(classes=classes)
    prefix = dict(img=str(folder.expanduser()))
    dataset = ClassFolders(data_prefix=prefix, metainfo=metainfo, lazy_init=True)
    samples = dataset.load_data_list()
    if sample is not None:
        samples = random.Random(0).sample(samples, min(sample, len(samples)))
    return samples, tuple(dataset.metainfo['classes'])


def _labeled(embedder: Embedder, samples: Sequence[dict], batch_size: int, workers: int) -> Labeled:
    paths = [sample['img_path'] for sample in samples]
    with ImageProgress() as progress:
        tokens, errors = embedder.tokens(paths, batch_size, workers, progress)
    bad = {path: error for path, error in zip(paths, errors, strict=True) if error}
    is_good = np.array([not error for error in errors])
    labels = np.array([sample['gt_label'] for sample in samples])[is_good]
    values = (torch.from_numpy(array).to(embedder.device) for array in (tokens[is_good], labels))
    return Labeled(*values, bad)


def _knn(labeled: Labeled, queries: Labeled, num_classes: int) -> dict[str, dict[str, float]]:
    """Return top-1 and top-5 for each k of ``KS`` up to the number of labeled images."""
    similarities, indices = nearest_neighbors(labeled.tokens, queries.tokens, max(KS))
    accuracies = {}
    # With fewer labeled images than the smallest k, all of them are neighbors.
    for k in [k for k in KS if k <= similarities.shape[1]] or [similarities.shape[1]]:
        votes = neighbor_votes(similarities[:, :k], labeled.labels[indices[:, :k]], num_classes)
        accuracies[str(k)] = {f'top{n}': top_accuracy(votes, queries.labels, n) for n in (1, 5)}
    return accuracies


def _line(name: str, accuracy: dict[str, float]) -> str:
    return f'{name}: top-1 {accuracy["top1"]:.2f} %, top-5 {accuracy["top5"]:.2f} %'
