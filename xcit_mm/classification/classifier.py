"""A classifier, asked about image files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..device import choose_device
from ..errors import UserError
from ..inference.progress import ImageProgress
from ..weights.architecture import architecture
from .folder import LabelledImages, class_names
from .inputs import Bad, batches
from .loading import load_classifier
from .published import input_size, released

TOP = 5


class Guess(NamedTuple):
    """A class that an image may be of, and with which probability (0..1)."""

    label: int
    name: str
    probability: float


@dataclass
class Accuracy:
    """How often a classifier is right.

    Attributes:
        top1: How often the most probable class is the right one, in percent.
        top5: How often it is among the five most probable ones, in percent.
        images: How many were read.
        bad: Files that were left out, and what is bad about each.
    """

    top1: float
    top5: float
    images: int
    bad: list[tuple[Path, str]] = field(default_factory=list)


class Classifier:
    """A checkpoint's classifier, and how images are given to it.

    Args:
        checkpoint: As of :func:`load_classifier`.
        size: Of the square that is cut out of each image, in pixels; None: that of the training,
            which the file's name says, or 224.
        batch_size: Images at a time.
        workers: Processes that read images; 0: this one.
        device: Its name; None: a GPU where there is one.
        trusted: As of :func:`xcit_mm.weights.read.read_checkpoint`.

    Attributes:
        model: timm's, as of :func:`load_classifier`.
        kind: Its :class:`~xcit_mm.weights.architecture.Architecture`, told by the weights.
        named: The model of the release that its file is called after, or None.

    Raises:
        UserError: If it cannot be loaded, or the device not be used.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        size: int | None = None,
        batch_size: int = 64,
        workers: int = 0,
        device: str | None = None,
        trusted: bool = False,
    ) -> None:
        self.checkpoint = str(checkpoint)
        self.device = choose_device(device)
        self.model = load_classifier(checkpoint, trusted=trusted).to(self.device)
        self.kind = architecture(self.model.state_dict(), self.checkpoint)
        self.named = released(self.checkpoint)
        self.size, self.size_reason = (size, 'as asked') if size else input_size(self.named)
        self.batch_size = batch_size
        self.workers = workers

    def describe(self) -> str:
        """What the file holds, and how images are prepared, in two lines."""
        millions = sum(p.numel() for p in self.model.parameters()) / 1e6
        text = f'{self.checkpoint}: {self.kind}, {millions:.2f} M parameters, '
        text += f'{self.model.num_classes:,} classes'
        if self.named is not None and self.named[:2] != (self.kind.arch, self.kind.patch_size):
            text += f', although its name says {self.named.arch.upper()}/{self.named.patch_size}'
        return (
            f'{text}\nimages: {self.size} pixels ({self.size_reason}), bicubic, crop ratio 1.0, on '
            f'{self.device}'
        )

    def accuracy(self, images: LabelledImages) -> Accuracy:
        """Measure how often it is right, with a progress bar.

        Raises:
            UserError: If no image can be read.
        """
        labels = torch.tensor(images.labels)
        right = torch.zeros(TOP, dtype=torch.long)  # at the first, second, ... place
        total = 0
        bad: list[Bad] = []
        for indices, probabilities, unread in self._predict(images.paths):
            bad += unread
            hits = _top(probabilities).indices == labels[indices, None]
            right[: hits.shape[1]] += hits.sum(0)
            total += len(indices)
        return Accuracy(
            top1=100 * right[0].item() / total,
            top5=100 * right.sum().item() / total,
            images=total,
            bad=[(images.paths[index], why) for index, why in sorted(bad)],
        )

    def top_classes(self, paths: Sequence[str | Path]) -> list[list[Guess] | str]:
        """The five most probable classes of each image (file or URL), or what is bad about it.

        Raises:
            UserError: If no image can be read.
        """
        names = class_names(self.model.num_classes)
        results: dict[int, list[Guess] | str] = {}
        for indices, probabilities, bad in self._predict(paths):
            results.update(bad)
            values, labels = (t.tolist() for t in _top(probabilities))
            for i, index in enumerate(indices):
                guesses = zip(labels[i], values[i], strict=True)
                results[index] = [Guess(label, names[label], value) for label, value in guesses]
        return [results[index] for index in range(len(paths))]

    def _predict(
        self, paths: Sequence[str | Path]
    ) -> Iterator[tuple[list[int], Tensor, list[Bad]]]:
        """Numbers of images, their probabilities (n, classes) on the CPU, and the bad images."""
        good, bad = 0, []
        with ImageProgress() as progress, torch.inference_mode():
            progress.expect(len(paths))
            for indices, images, unread in batches(paths, self.size, self.batch_size, self.workers):
                probabilities = torch.empty(0, self.model.num_classes)
                if images is not None:
                    probabilities = self.model(images.to(self.device)).softmax(-1).cpu()
                good += len(indices)
                bad += unread
                yield indices, probabilities, unread
                for _, why in unread:
                    progress.report(f'{why}; left out')
                for _ in (*indices, *unread):
                    progress.count()
        if not good:
            why = bad[0][1]
            others = f', and none of the other {len(bad) - 1} can be read' if bad[1:] else ''
            raise UserError(f'{why}{others}')


def _top(probabilities: Tensor) -> torch.return_types.topk:
    return probabilities.topk(min(TOP, probabilities.shape[1]))
