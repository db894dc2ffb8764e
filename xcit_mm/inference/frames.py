"""Images and the frames of videos, one after the other."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import UserError
from .progress import ImageProgress
from .reading import read_image
from .sources import Input
from .video import VideoReader

MAX_PIXELS = 2**25  # of the images of a batch: the masks of a large image are gigabytes


@dataclass(frozen=True)
class Frame:
    """An image, or a frame of a video.

    Attributes:
        input: Where it is from.
        image: RGB, (H, W, 3) uint8.
        index: Of the frame, from 0; None: an image.
        rate: Pictures a second; None: an image.
    """

    input: Input
    image: np.ndarray
    index: int | None = None
    rate: float | None = None


def read_frames(inputs: Iterable[Input], progress: ImageProgress) -> Iterator[Frame]:
    """Read images and videos.

    Args:
        inputs: Which.
        progress: Is told of the frames of each video, and of what cannot be read.
    """
    for one in inputs:
        expected = 1
        try:
            if one.is_video:
                video = VideoReader(one.source)
                progress.expect(video.length - 1)
                expected = video.length
                for index, image in enumerate(video):
                    expected -= 1
                    yield Frame(one, image, index, video.rate)
            else:
                image = read_image(one.source)
                expected = 0
                yield Frame(one, image)
        except UserError as error:
            progress.report(str(error))
        progress.expect(-expected)


def batches(frames: Iterable[Frame], batch_size: int) -> Iterator[list[Frame]]:
    """Join frames, fewer of large ones, so that the memory does not grow with their size."""
    batch: list[Frame] = []
    for frame in frames:
        batch.append(frame)
        height, width = frame.image.shape[:2]
        if len(batch) == batch_size or (len(batch) + 1) * height * width > MAX_PIXELS:
            yield batch
            batch = []
    if batch:
        yield batch
