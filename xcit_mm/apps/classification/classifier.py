"""A classifier of image files."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from ...base.device import choose_device, choose_dtype
from ...base.progress import ImageProgress
from ...network.weights.image_network import described_classes, described_images
from ...network.weights.inflation import RGB, STEM
from ...network.weights.names import architecture
from ...network.weights.published import name_in_release, training_size
from ...network.weights.read import read_checkpoint
from ...network.weights.timm_classifier import classifier_in
from ...predict.embedder import image_reader
from ...predict.image_batches import image_batches
from ...predict.sources import read_image

NUM_CLASSES = 1000  # of ImageNet


class Guess(NamedTuple):
    """A class of an image and its probability (0 to 1)."""

    label: int
    name: str
    probability: float


class Classifier:
    """The classifier of a checkpoint with the preprocessing of its images.

    Images are prepared as the release was evaluated (paper, section 4.1: crop ratio 1.0): timm's
    transforms resize the shorter side to ``size`` (bicubic), cut out the central square and
    normalize it. A file of our trainings says how its images are normalized, how many pixels and
    channels they have, and what the classes are called.

    Args:
        checkpoint: See :func:`~xcit_mm.network.weights.timm_classifier.load_classifier`.
        size: Side of the square in pixels. None: the training size according to the file or its
            name, or 224.
        batch_size: Images in a batch.
        workers: Processes that read images. 0: read them in this process.
        device: Name of a device. None: a GPU if there is one, otherwise the CPU.
        trusted: See :func:`xcit_mm.network.weights.read.read_checkpoint`.
        dtype: See :func:`xcit_mm.load_model`.

    Attributes:
        model: timm's model, see :func:`~xcit_mm.network.weights.timm_classifier.load_classifier`.
        classes: The names of the classes in a file of our trainings, otherwise an empty list.
        description: The checkpoint, its architecture, parameters and image size, for JSON.

    Raises:
        UserError: If the checkpoint cannot be loaded, or the device or dtype cannot be used.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        size: int | None = None,
        batch_size: int = 64,
        workers: int = 0,
        device: str | None = None,
        trusted: bool = False,
        dtype: str | None = None,
    ) -> None:
        self.checkpoint = str(checkpoint)
        self.device = choose_device(device)
        self.dtype = choose_dtype(dtype, self.device)
        content = read_checkpoint(checkpoint, trusted=trusted)
        self.model = classifier_in(content, checkpoint).to(self.device, self.dtype)
        state = self.model.state_dict()
        self.architecture = architecture(state, self.checkpoint, content)
        self.released_name = name_in_release(self.checkpoint, str(self.architecture))
        images = described_images(content)
        self.classes = described_classes(content)
        self.size = size or images.get('size') or training_size(self.released_name)
        self._prepare = self._reader(state[STEM].shape[1], images)
        self._names = self._class_names()
        self.batch_size, self.workers = batch_size, workers
        self.description = dict(
            checkpoint=self.checkpoint,
            model=str(self.architecture),
            parameters=sum(p.numel() for p in self.model.parameters()),
            size=self.size,
        )

    def _reader(self, channels: int, images: dict[str, Any]) -> Callable[[str], Tensor]:
        """Return what reads an image as the checkpoint says that its images are prepared."""
        from timm.data import create_transform

        if images or channels != RGB:
            arguments = self.checkpoint, channels, images, None, None, self.size, 'square'
            return image_reader(*arguments, ratio=1.0)
        size = (RGB, self.size, self.size)
        transform = create_transform(size, interpolation='bicubic', crop_pct=1.0)
        return partial(_read_image, transform)

    def _class_names(self) -> Sequence[str]:
        from timm.data import ImageNetInfo

        number = self.model.num_classes
        if number == NUM_CLASSES and not self.classes:
            return ImageNetInfo().label_descriptions()
        return self.classes or [f'class {i}' for i in range(number)]

    @torch.inference_mode()
    def top_classes(self, paths: Sequence[str | Path]) -> list[list[Guess] | str]:
        """Return the five most probable classes of each path or URL, or its error message.

        Raises:
            UserError: If no image can be read.
        """
        results: list[list[Guess] | str] = []
        with ImageProgress() as progress:
            loading = self._prepare, self.batch_size, self.workers
            for batch in image_batches(paths, *loading, progress):
                images = [image for image in batch if isinstance(image, Tensor)]
                guesses = iter(self._guesses(images) if images else ())
                results += [im if isinstance(im, str) else next(guesses) for im in batch]
        return results

    def _guesses(self, images: Sequence[Tensor]) -> Iterator[list[Guess]]:
        scores = self.model(torch.stack(images).to(self.device, self.dtype)).float().softmax(-1)
        top = (t.tolist() for t in scores.topk(min(5, len(self._names))))
        for values, labels in zip(*top, strict=True):
            best = zip(labels, values, strict=True)
            yield [Guess(i, self._names[i], value) for i, value in best]


def _read_image(transform: Callable[[Image.Image], Tensor], path: str) -> Tensor:
    return transform(Image.fromarray(read_image(path)))
