"""What is said of a classifier: the published accuracy beside the measured one, or top fives."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import write_whole
from .classifier import Accuracy, Classifier
from .folder import IMAGENET_CLASSES, LabelledImages, labelled_images
from .published import NUM_IMAGES, allowed_difference, published, standard_error


@dataclass
class Report:
    """What was found, for reading and for programs.

    Attributes:
        text: For reading.
        content: For a JSON file.
        bad: Files that were left out, and what is bad about each.
        agrees: Whether the accuracy is the published one; None where that cannot be said.
    """

    text: str
    content: dict[str, Any]
    bad: list[tuple[str | Path, str]]
    agrees: bool | None = None

    @property
    def is_right(self) -> bool:
        """Whether every file was read, and no published accuracy missed."""
        return not self.bad and self.agrees is not False

    def write(self, path: Path) -> None:
        """Write it as JSON, whole or not at all."""
        with write_whole(path, 'w') as file:
            json.dump(self.content, file, indent=2)


def report_folder(classifier: Classifier, folder: Path, sample: int | None = None) -> Report:
    """Measure the accuracy on a folder of images and hold it against the published one.

    Args:
        classifier: What is measured.
        folder: As of :func:`labelled_images`.
        sample: How many of its images, drawn at random; None: all.

    Raises:
        UserError: If the folder is not one of such images, or none of them can be read.
    """
    images = labelled_images(folder, classifier.model.num_classes)
    if sample is not None:
        images = images.sample(sample)
    accuracy = classifier.accuracy(images)
    error = standard_error(accuracy.top1, accuracy.images)
    sampled = f' (standard error {error:.2f})' if accuracy.images < NUM_IMAGES else ''
    measured = (
        f'top-1 {accuracy.top1:.2f} %{sampled}, top-5 {accuracy.top5:.2f} % of '
        f'{accuracy.images:,} images of {images.num_classes:,} classes'
    )
    text, agrees = verdict(classifier, images, accuracy)
    candidates = published(classifier.kind, classifier.size, classifier.named)
    content = dict(
        **_about(classifier),
        images=accuracy.images,
        classes=images.num_classes,
        top1=accuracy.top1,
        top5=accuracy.top5,
        standard_error=error,
        published={model.name: model.top1 for model in candidates if images.is_imagenet},
        agrees=agrees,
        bad={str(file): why for file, why in accuracy.bad},
    )
    return Report(f'{measured}\n{text}', content, accuracy.bad, agrees)


def report_pictures(classifier: Classifier, files: Sequence[str | Path]) -> Report:
    """Name the five most probable classes of each picture, a file or URL.

    Raises:
        UserError: If none of them can be read.
    """
    results = classifier.top_classes(files)
    named = [(f, r) for f, r in zip(files, results, strict=True) if not isinstance(r, str)]
    bad = [(f, r) for f, r in zip(files, results, strict=True) if isinstance(r, str)]
    lines = [
        line
        for file, guesses in named
        for line in (str(file), *(f'{100 * g.probability:7.1f} %  {g.name}' for g in guesses))
    ]
    content = dict(
        **_about(classifier),
        images={str(file): [guess._asdict() for guess in guesses] for file, guesses in named},
        bad={str(file): why for file, why in bad},
    )
    return Report('\n'.join(lines), content, bad)


def verdict(
    classifier: Classifier, images: LabelledImages, accuracy: Accuracy
) -> tuple[str, bool | None]:
    """Whether the weights are the published ones, in words, and as far as that can be said.

    Args:
        classifier: That was measured.
        images: On which.
        accuracy: What was measured.

    Returns:
        The words, and None where there is nothing to compare with.
    """
    candidates = published(classifier.kind, classifier.size, classifier.named)
    if not images.is_imagenet:
        return 'There is no published figure for classes of your own.', None
    if not candidates:
        what = f'{classifier.kind} at {classifier.size} pixels'
        return f'There is no published figure for {what}.', None
    figures = ' or '.join(f'{model.top1} for {model.name}' for model in candidates)
    said = f'{accuracy.top1:.1f} measured, published {figures}'
    if images.num_classes < IMAGENET_CLASSES:
        return (
            f'{said}, for all {IMAGENET_CLASSES:,} classes: with {images.num_classes} of them it '
            'may be several points higher or lower.',
            None,
        )
    nearest = min(candidates, key=lambda model: abs(model.top1 - accuracy.top1))
    allowed = allowed_difference(nearest.top1, accuracy.images)
    if abs(nearest.top1 - accuracy.top1) <= allowed:
        return f'{said}: the right weights ({allowed:.1f} apart would still be as expected).', True
    return (
        f'{said}: more than {allowed:.1f} apart. These are other weights, or the images are not '
        "ImageNet's validation set.",
        False,
    )


def _about(classifier: Classifier) -> dict[str, Any]:
    return dict(
        checkpoint=classifier.checkpoint,
        model=str(classifier.kind),
        parameters=sum(p.numel() for p in classifier.model.parameters()),
        size=classifier.size,
    )
