"""The accuracy of a classifier compared with the published one, and its best classes."""

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...base.errors import UserError
from ...base.finder import find_files, subfolders
from ...network.archs import released_name
from ...network.weights.names import Architecture
from ...network.weights.published import TOP1, training_size
from .classifier import NUM_CLASSES, Classifier

NUM_IMAGES = 50_000  # of ImageNet's validation set
# Percentage points: figures are rounded to 0.1, and timm's evaluation of the released files
# (its results-imagenet.csv) differs from them by up to 0.12.
TOLERANCE = 0.2
STANDARD_ERRORS = 3  # allowed deviation on a sample of the validation set
MAX_LISTED = 5  # names in an error


def labeled_images(
    folder: Path, num_classes: int, classes: Sequence[str] = ()
) -> tuple[list[tuple[str, int]], bool]:
    """List the images of a folder that has a subfolder for each class.

    With the names of ``classes``, the subfolders are some of them. Without, subfolders named after
    ImageNet's synsets may be fewer than its 1000; with other names, they are the classes in
    alphabetical order. Returns the path and the class index of every image, and whether the classes
    are ImageNet's.
    """
    from timm.data import ImageNetInfo

    names = [path.name for path in subfolders(folder)]
    labels = {name: label for label, name in enumerate(names)}
    synsets = ImageNetInfo().label_names()
    is_imagenet = num_classes == NUM_CLASSES and set(names) <= set(synsets)
    if classes:
        unknown = [name for name in names if name not in classes]
        if unknown:
            raise UserError(
                f'{folder} has the subfolder {unknown[0]}, which is not a class of the '
                f'checkpoint ({_first(classes)}): check the path'
            )
        labels = {name: classes.index(name) for name in names}
    elif is_imagenet:
        labels = {name: synsets.index(name) for name in names}
    elif len(names) != num_classes:
        raise UserError(
            f'{folder} has {len(names)} subfolders ({_first(names)}), but it must '
            f'have one for each of the {num_classes} classes, named by synset (n01440764) for '
            'ImageNet: check the path'
        )
    samples = []
    for name, label in labels.items():
        files = sorted(find_files(folder / name))
        if not files:
            raise UserError(f'{folder / name} has no image: add images of the class, or remove it')
        samples += [(str(file), label) for file in files]
    return samples, is_imagenet and not classes


def report_folder(
    classifier: Classifier, folder: Path, sample: int | None = None
) -> tuple[str, dict[str, Any]]:
    """Measure the accuracy on :func:`labeled_images` and compare it with the published one.

    ``sample`` is the number of images to draw at random, the same ones in every call; None: all.
    Returns lines to print, and the content of a JSON file.
    """
    samples, is_imagenet = labeled_images(folder, classifier.model.num_classes, classifier.classes)
    num_classes = len({label for _, label in samples})
    if sample is not None:
        samples = random.Random(0).sample(samples, min(sample, len(samples)))
    results = classifier.top_classes([path for path, _ in samples])
    hits, bad = [], {}
    for (path, label), guesses in zip(samples, results, strict=True):
        if isinstance(guesses, str):
            bad[path] = guesses
        else:
            hits.append([guess.label == label for guess in guesses])
    num_images = len(hits)
    top1 = 100 * sum(hit[0] for hit in hits) / num_images
    top5 = 100 * sum(map(any, hits)) / num_images
    error = standard_error(top1, num_images)
    candidates = {}
    if is_imagenet:
        candidates = published(classifier.architecture, classifier.size, classifier.released_name)
    sentence, agrees = verdict(candidates, top1, num_images, num_classes)
    content = classifier.description | dict(
        images=num_images,
        classes=num_classes,
        top1=top1,
        top5=top5,
        standard_error=error,
        published=candidates,
        agrees=agrees,
        bad=bad,
    )
    sampled = f' (standard error {error:.2f})' if num_images < NUM_IMAGES else ''
    accuracy = f'top-1 {top1:.2f} %{sampled}, top-5 {top5:.2f} %'
    return f'{accuracy} of {num_images:,} images of {num_classes:,} classes\n{sentence}', content


def report_pictures(
    classifier: Classifier, files: Sequence[str | Path]
) -> tuple[str, dict[str, Any]]:
    """List the five most probable classes of each picture, a file or URL.

    Returns lines to print, and the content of a JSON file.
    """
    images, bad, lines = {}, {}, []
    for file, guesses in zip(map(str, files), classifier.top_classes(files), strict=True):
        if isinstance(guesses, str):
            bad[file] = guesses
            continue
        images[file] = [guess._asdict() for guess in guesses]
        lines += [file, *(f'{guess.probability:9.1%}  {guess.name}' for guess in guesses)]
    return '\n'.join(lines), dict(**classifier.description, images=images, bad=bad)


def published(architecture: Architecture, size: int, name: str | None) -> dict[str, float]:
    """Return the published models that a classifier may be, and their top-1 in percent.

    Without a name these are all of this architecture and image size.
    """
    if architecture.arch is None:
        return {}
    prefix = released_name(architecture.arch, architecture.patch_size, training='')
    names = [n for n in TOP1 if n.startswith(prefix)] if name is None else [name]
    return {n: TOP1[n] for n in names if n in TOP1 and training_size(n) == size}


def standard_error(top1: float, images: int) -> float:
    """Return the standard error of an accuracy (percent) on a number of images."""
    return math.sqrt(top1 * (100 - top1) / images)


def verdict(
    candidates: Mapping[str, float], top1: float, images: int, classes: int
) -> tuple[str, bool | None]:
    """Compare the top-1 (percent) on a number of images of some classes with those published.

    Returns a sentence, and whether the weights are the published ones, or None if that is unknown.
    """
    if not candidates:
        return 'There is no published figure for this model, image size and classes.', None
    figures = ' or '.join(f'{figure} for {name}' for name, figure in candidates.items())
    text = f'{top1:.1f} measured, published {figures}'
    if classes < NUM_CLASSES:
        return f'{text}. On {classes} of the 1,000 classes, several points apart are normal.', None
    nearest = min(candidates.values(), key=lambda figure: abs(figure - top1))
    left_out = max(0.0, 1 - images / NUM_IMAGES)  # share of the validation set
    allowed = TOLERANCE + STANDARD_ERRORS * standard_error(nearest, images) * left_out**0.5
    if abs(nearest - top1) <= allowed:
        return f'{text}, at most {allowed:.1f} apart: these are the right weights.', True
    problem = "these are other weights, or the images are not ImageNet's validation set"
    return f'{text}, more than {allowed:.1f} apart: {problem}.', False


def _first(names: Sequence[str]) -> str:
    more = f' and {len(names) - MAX_LISTED} more' if len(names) > MAX_LISTED else ''
    return f'{", ".join(names[:MAX_LISTED])}{more}'
