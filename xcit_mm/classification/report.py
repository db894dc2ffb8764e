"""The accuracy of a classifier beside the published one, and its best classes for pictures."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

from ..errors import UserError, reason
from .classifier import Classifier
from .published import NUM_CLASSES, NUM_IMAGES, published, standard_error, verdict


class LabelledImages(NamedTuple):
    """Paths and class indices of images, and the number of classes in the whole folder."""

    paths: list[str]
    labels: list[int]
    num_classes: int
    is_imagenet: bool


def labelled_images(folder: Path, num_classes: int, sample: int | None = None) -> LabelledImages:
    """List the images of a folder that has a subfolder for each class.

    Subfolders named after ImageNet's synsets may be fewer than its 1000. Subfolders with other
    names are the classes in alphabetical order. Every call draws the same ``sample``.

    Raises:
        UserError: If the subfolders do not match the classes, or one of them holds no image.
    """
    from timm.data import ImageNetInfo

    try:
        folders = (path for path in folder.iterdir() if path.is_dir())
        names = sorted(path.name for path in folders if not path.name.startswith('.'))
        labels = {synset: i for i, synset in enumerate(ImageNetInfo().label_names())}
        is_imagenet = num_classes == NUM_CLASSES and any(name in labels for name in names)
        if is_imagenet:
            unexpected = [name for name in names if name not in labels]
        else:
            labels = {name: i for i, name in enumerate(names)}
            unexpected = names if len(names) != num_classes else []
        if unexpected or not names:
            shown = ', '.join(unexpected[:3]) + (', ...' if unexpected[3:] else '')
            raise UserError(
                f'{folder} must have one subfolder for each of the {num_classes} classes, named by '
                f'synset (n01440764) for ImageNet, but it has {shown or "none"}: check the path'
            )
        files = make_dataset(folder, {name: labels[name] for name in names}, IMG_EXTENSIONS)
    except OSError as error:
        raise UserError(
            f'the images of {folder} cannot be listed ({reason(error)}): check the path'
        ) from None
    if sample is not None:
        files = random.Random(0).sample(files, min(sample, len(files)))
    paths, labels = map(list, zip(*files, strict=True))
    return LabelledImages(paths, labels, len(names), is_imagenet)


def report_folder(
    classifier: Classifier, folder: Path, sample: int | None = None
) -> tuple[str, dict[str, Any]]:
    """Measure the accuracy on :func:`labelled_images` and compare it with the published one.

    Returns:
        Lines to print, and the content of a JSON file.

    Raises:
        UserError: If the folder does not match the classifier, or no image can be read.
    """
    images = labelled_images(folder, classifier.model.num_classes, sample)
    results = classifier.top_classes(images.paths)
    hits, bad = [], {}
    for path, label, guesses in zip(images.paths, images.labels, results, strict=True):
        if isinstance(guesses, str):
            bad[path] = guesses
        else:
            hits.append([guess.label == label for guess in guesses])
    top1 = 100 * sum(hit[0] for hit in hits) / len(hits)
    top5 = 100 * sum(any(hit) for hit in hits) / len(hits)
    error = standard_error(top1, len(hits))
    candidates = {}
    if images.is_imagenet:
        candidates = published(classifier.architecture, classifier.size, classifier.released_name)
    sentence, agrees = verdict(candidates, top1, len(hits), images.num_classes)
    content = dict(
        **_description(classifier),
        images=len(hits),
        classes=images.num_classes,
        top1=top1,
        top5=top5,
        standard_error=error,
        published=candidates,
        agrees=agrees,
        bad=bad,
    )
    sampled = f' (standard error {error:.2f})' if len(hits) < NUM_IMAGES else ''
    text = (
        f'top-1 {top1:.2f} %{sampled}, top-5 {top5:.2f} % of {len(hits):,} images of '
        f'{images.num_classes:,} classes\n{sentence}'
    )
    return text, content


def report_pictures(
    classifier: Classifier, files: Sequence[str | Path]
) -> tuple[str, dict[str, Any]]:
    """List the five most probable classes of each picture, a file or URL.

    Returns:
        Lines to print, and the content of a JSON file.

    Raises:
        UserError: If no picture can be read.
    """
    results = dict(zip(map(str, files), classifier.top_classes(files), strict=True))
    bad = {file: error for file, error in results.items() if isinstance(error, str)}
    images = {
        file: [guess._asdict() for guess in guesses]
        for file, guesses in results.items()
        if file not in bad
    }
    lines = []
    for file, guesses in images.items():
        lines += [file, *('{probability:9.1%}  {name}'.format(**guess) for guess in guesses)]
    return '\n'.join(lines), dict(**_description(classifier), images=images, bad=bad)


def _description(classifier: Classifier) -> dict[str, Any]:
    return dict(
        checkpoint=classifier.checkpoint,
        model=str(classifier.architecture),
        parameters=sum(p.numel() for p in classifier.model.parameters()),
        size=classifier.size,
    )
