"""The frames of a video, and pictures as a video."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np

from ..base.environment import variables
from ..base.errors import UserError, list_folder_hint
from ..base.http import is_url

# The containers that FFmpeg may open. FFmpeg looks at the content, not at the name: a playlist that
# is called .mp4 would make it read any other file of this machine.
CONTAINERS = 'avi,asf,flv,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mpeg,mpegts,mpegvideo,ogg'
FFMPEG_OPTIONS = {  # OpenCV reads this environment variable
    'OPENCV_FFMPEG_CAPTURE_OPTIONS': f'format_whitelist;{CONTAINERS}|protocol_whitelist;file'
}
DEFAULT_RATE = 25.0  # frames per second, for a video without a usable rate
MAX_RATE = 240.0
CODEC = 'mp4v'  # OpenCV's own FFmpeg has it
COMPLETE = 0.95  # share of the announced frames, which some formats only estimate


def read_video(path: str) -> tuple[int, float, Iterator[np.ndarray]]:
    """Return the announced number of frames, frames per second, and frames as RGB (H, W, 3) uint8.

    If there are fewer frames, the iterator raises a UserError after the last of them.
    """
    if is_url(path):
        raise UserError(f'{path}: a video is read from a file; download it first')
    if not Path(path).is_file():
        raise UserError(f'{path} does not exist{list_folder_hint(path)}')
    with variables(FFMPEG_OPTIONS):
        capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG)
    _, first = capture.read()
    if first is None:  # OpenCV opens some files without frames
        raise UserError(f'{path}: it is not a readable video, or it has no frames')
    length = max(1, int(capture.get(cv2.CAP_PROP_FRAME_COUNT)))
    rate = capture.get(cv2.CAP_PROP_FPS)

    def frames() -> Iterator[np.ndarray]:
        frame, number = first, 0
        while frame is not None:
            yield np.ascontiguousarray(frame[..., ::-1])
            number += 1
            _, frame = capture.read()
        if number < COMPLETE * length:
            done = f'{number} of {length} frames'
            raise UserError(f'{path}: it is cut off after {done}, which are kept')

    return length, rate if 0 < rate <= MAX_RATE else DEFAULT_RATE, frames()


@contextmanager
def write_video(
    path: Path, rate: float, size: tuple[int, int]
) -> Iterator[Callable[[np.ndarray], None]]:
    """Yield a function that adds an RGB picture to an mp4 file, which is whole or absent."""
    unfinished = path.with_name(f'.unfinished_{path.name}')
    writer = cv2.VideoWriter(str(unfinished), cv2.VideoWriter_fourcc(*CODEC), rate, size)
    try:
        if not writer.isOpened():
            width, height = size
            raise OSError(f'OpenCV cannot write a video of {width}x{height} pixels at {rate:g} Hz')
        yield lambda picture: writer.write(picture[..., ::-1])
        writer.release()
        unfinished.replace(path)
    finally:
        writer.release()
        unfinished.unlink(missing_ok=True)
