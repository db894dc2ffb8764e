"""The frames of a video, and pictures as a video."""

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import cv2
import numpy as np

from ..errors import UserError
from ..weights.download import is_url

# The containers that FFmpeg may open. It goes by the content, not by the name, and a playlist that
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

    Raises a UserError if the file is not a video, or has fewer frames, after the last of them.
    """
    if is_url(path):
        raise UserError(f'{path}: a video is read from a file; fetch it first')
    if not Path(path).is_file():
        raise UserError(f'{path} does not exist (looked in {Path.cwd()})')
    with patch.dict(os.environ, FFMPEG_OPTIONS):
        capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG)
    _, first = capture.read()
    if first is None:  # OpenCV opens some files without frames
        raise UserError(f'{path}: it is no video that can be read, or one without frames')
    length = max(1, int(capture.get(cv2.CAP_PROP_FRAME_COUNT)))
    rate = capture.get(cv2.CAP_PROP_FPS)

    def frames() -> Iterator[np.ndarray]:
        frame, number = first, 0
        while frame is not None:
            yield np.ascontiguousarray(frame[..., ::-1])
            number += 1
            _, frame = capture.read()
        if number < COMPLETE * length:
            raise UserError(
                f'{path}: it is cut off after {number} of {length} frames, which are done'
            )

    return length, rate if 0 < rate <= MAX_RATE else DEFAULT_RATE, frames()


class VideoWriter:
    """An mp4 file of RGB pictures, which gets its name once it is closed."""

    def __init__(self, path: Path, rate: float, size: tuple[int, int]) -> None:
        self.path = path
        self._unfinished = path.with_name(f'.unfinished_{path.name}')
        codec = cv2.VideoWriter_fourcc(*CODEC)
        self._writer = cv2.VideoWriter(str(self._unfinished), codec, rate, size)
        if not self._writer.isOpened():
            self.discard()
            raise UserError(
                f'{path}: OpenCV cannot write a video of {size[0]}x{size[1]} pixels at {rate:g} '
                'pictures a second'
            )

    def add(self, picture: np.ndarray) -> None:
        self._writer.write(picture[..., ::-1])

    def close(self) -> None:
        self._writer.release()
        self._unfinished.replace(self.path)

    def discard(self) -> None:
        self._writer.release()
        self._unfinished.unlink(missing_ok=True)
