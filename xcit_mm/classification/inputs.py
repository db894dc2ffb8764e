"""Image files as a classifier is given them."""

import signal
from collections.abc import Sequence
from pathlib import Path

import cv2
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from ..environment import require
from ..errors import UserError
from ..inference.sources import read_image

Bad = tuple[int, str]  # the number of an image, and a sentence: what is bad about which one


class ImageFiles(Dataset):
    """Images, prepared as the release was evaluated (paper, section 4.1: crop ratio 1.0).

    The shorter side is resized to ``size`` (bicubic), the middle square cut out and normalised
    with ImageNet's mean and deviation, by timm's transforms.

    Args:
        paths: Of the files, or their URLs.
        size: Of the square, in pixels.
    """

    def __init__(self, paths: Sequence[str | Path], size: int) -> None:
        require('timm')
        from timm.data import create_transform

        self.paths = paths
        self.transform = create_transform((3, size, size), interpolation='bicubic', crop_pct=1.0)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[int, Tensor | str]:
        """The number of an image, and (3, size, size) or what is bad about it."""
        try:
            image = read_image(str(self.paths[index]))
        except UserError as error:
            return index, str(error)
        return index, self.transform(Image.fromarray(image))


def batches(paths: Sequence[str | Path], size: int, batch_size: int, workers: int) -> DataLoader:
    """Batches of prepared images: numbers, images (n, 3, size, size) or None, and the bad ones."""
    return DataLoader(
        ImageFiles(paths, size),
        batch_size,
        num_workers=min(workers, -(-len(paths) // batch_size)),
        collate_fn=_collate,
        worker_init_fn=_start,
    )


def _collate(samples: list[tuple[int, Tensor | str]]) -> tuple[list[int], Tensor | None, list[Bad]]:
    good = [(index, value) for index, value in samples if isinstance(value, Tensor)]
    bad = [(index, value) for index, value in samples if not isinstance(value, Tensor)]
    images = default_collate([image for _, image in good]) if good else None
    return [index for index, _ in good], images, bad


def _start(worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for these
    cv2.setNumThreads(0)  # they share the cores
