"""The frames of a video, and pictures as a video."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np

from ..environment import variables
from ..errors import UserError
from ..weights.download import is_url

# What FFmpeg may open: files that contain their frames. It decides by the content, not by the name,
# and a playlist called .mp4 would make it read, and wait for, any other file of this machine.
CONTAINERS = 'avi,asf,flv,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mpeg,mpegts,mpegvideo,ogg'
FFMPEG_OPTIONS = {  # a variable that OpenCV reads
    'OPENCV_FFMPEG_CAPTURE_OPTIONS': f'format_whitelist;{CONTAINERS}|protocol_whitelist;file'
}
DEFAULT_RATE = 25.0  # pictures a second, where a video does not say, or nothing that can be
MAX_RATE = 240.0
CODEC = 'mp4v'  # which OpenCV's own FFmpeg has
WHOLE = 0.95  # of the frames that a video says it has, which some formats only estimate


class VideoReader:
    """A video file.

    Attributes:
        path: The file.
        rate: Pictures a second.
        length: The number of frames that it says it has.

    Raises:
        UserError: If it is no video, or has no frames.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        if is_url(path):
            raise UserError(f'{path}: a video is read from a file; fetch it first')
        if not Path(path).is_file():
            raise UserError(f'{path} does not exist (looked in {Path.cwd()})')
        with variables(FFMPEG_OPTIONS):
            self._capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG)
        _, self._first = self._capture.read()
        if self._first is None:  # OpenCV opens some without frames, and others not
            raise UserError(f'{path}: it is no video that can be read, or one without frames')
        rate = self._capture.get(cv2.CAP_PROP_FPS)
        self.rate = rate if 0 < rate <= MAX_RATE else DEFAULT_RATE
        self.length = max(1, int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT)))

    def __iter__(self) -> Iterator[np.ndarray]:
        """The frames as RGB, (H, W, 3) uint8, once.

        Raises:
            UserError: After the last that can be read, if there should be more.
        """
        frame, number = self._first, 0
        while frame is not None:
            yield np.ascontiguousarray(frame[..., ::-1])
            number += 1
            _, frame = self._capture.read()
        self._capture.release()
        if number < WHOLE * self.length:
            raise UserError(
                f'{self.path}: it is cut off after {number} of {self.length} frames, which are done'
            )


class VideoWriter:
    """An mp4 file that takes its name once it is closed.

    Args:
        path: The file, which is replaced.
        rate: Pictures a second.
        size: Width and height in pixels.

    Raises:
        UserError: If such a video cannot be written.
    """

    def __init__(self, path: Path, rate: float, size: tuple[int, int]) -> None:
        self.path = path
        self._folder = TemporaryDirectory(dir=path.parent, prefix='.')
        self._unfinished = Path(self._folder.name, path.name)
        codec = cv2.VideoWriter_fourcc(*CODEC)
        self._writer = cv2.VideoWriter(str(self._unfinished), codec, rate, size)
        if not self._writer.isOpened():
            self._folder.cleanup()
            width, height = size
            raise UserError(
                f'{path}: OpenCV cannot write a video of {width}x{height} pixels at {rate:g} '
                'pictures a second'
            )

    def add(self, picture: np.ndarray) -> None:
        """Append a picture, RGB, of the size of the video."""
        self._writer.write(picture[..., ::-1])

    def close(self) -> None:
        self._writer.release()
        self._unfinished.replace(self.path)
        self._folder.cleanup()

    def discard(self) -> None:
        self._writer.release()
        self._folder.cleanup()
