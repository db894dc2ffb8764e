"""Videos are read to their end and written as a whole."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from xcit_mm import UserError
from xcit_mm.inference.video import read_video, write_video


def write(path: Path, number: int, size: tuple[int, int] = (64, 48)) -> Path:
    """A video that gets redder."""
    with write_video(path, 10, size) as add:
        for i in range(number):
            add(np.full((*size[::-1], 3), (20 * (i % 12), 10, 10), np.uint8))
    return path


@pytest.mark.parametrize(('size', 'shape'), [((64, 48), (48, 64, 3)), ((65, 47), (46, 64, 3))])
def test_a_written_video_is_read(tmp_path, size, shape):  # without the last pixel of an odd side
    length, rate, frames = read_video(str(write(tmp_path / 'a.mp4', 7, size)))
    assert (length, rate) == (7, 10)
    frames = list(frames)
    assert [round(frame[..., 0].mean() / 20) for frame in frames] == list(range(7))  # red
    assert frames[6][..., 2].mean() < 30 and frames[0].shape == shape


@pytest.mark.parametrize(
    'content',
    [
        b'hello',
        b'#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nprivate.mp4\n#EXT-X-ENDLIST\n',
        b'ffconcat version 1.0\nfile private.mp4\n',
    ],
)
def test_a_file_that_is_not_a_video_is_an_error_and_reads_no_other_file(tmp_path, content):
    write(tmp_path / 'private.mp4', 5)
    for name in ('clip.mp4', 'clip.mkv'):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match='it is no video that can be read, or one without'):
            read_video(str(tmp_path / name))


@pytest.mark.parametrize(
    ('suffix', 'codec'), [('.avi', 'MJPG'), ('.mkv', 'mp4v'), ('.mov', 'mp4v'), ('.wmv', 'WMV2')]
)
def test_other_containers_are_read(tmp_path, suffix, codec):
    path = tmp_path / f'a{suffix}'
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*codec), 10, (64, 48))
    for _ in range(5):
        writer.write(np.full((48, 64, 3), 128, np.uint8))
    writer.release()
    assert len(list(read_video(str(path))[2])) == 5


def test_a_video_that_is_cut_off_gives_its_frames_and_an_error(tmp_path):
    path = write(tmp_path / 'a.avi', 60, (320, 240))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    _, _, frames = read_video(str(path))
    assert next(frames).shape == (240, 320, 3)
    with pytest.raises(UserError, match=r'cut off after \d+ of 60 frames'):
        list(frames)


def test_videos_that_cannot_be_read_or_written_are_errors_and_leave_nothing(tmp_path):
    for path, message in (('gone.mp4', 'does not exist'), ('http://host/a.mp4', 'from a file')):
        with pytest.raises(UserError, match=message):
            read_video(path)
    with pytest.raises(KeyboardInterrupt), write_video(tmp_path / 'a.mp4', 10, (64, 48)) as add:
        add(np.zeros((48, 64, 3), np.uint8))
        raise KeyboardInterrupt
    with pytest.raises(UserError, match='cannot write a video of 20000x10 pixels'):
        write_video(tmp_path / 'a.mp4', 10, (20000, 10)).__enter__()
    assert list(tmp_path.iterdir()) == []
