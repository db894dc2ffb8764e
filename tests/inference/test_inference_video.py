"""Videos are read to their end and written as a whole."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from xcit_mm import UserError
from xcit_mm.inference.video import VideoReader, VideoWriter


def write(path: Path, number: int, size: tuple[int, int] = (64, 48)) -> Path:
    """A video that gets brighter."""
    writer = VideoWriter(path, 10, size)
    for i in range(number):
        writer.add(np.full((*size[::-1], 3), 20 * (i % 12), np.uint8))
    writer.close()
    return path


@pytest.mark.parametrize('size', [(64, 48), (65, 47)])
def test_what_is_written_is_read(tmp_path, size):
    video = VideoReader(str(write(tmp_path / 'a.mp4', 7, size)))
    assert (video.length, video.rate) == (7, 10)
    frames = list(video)
    assert [round(frame.mean() / 20) for frame in frames] == list(range(7))
    assert frames[0].shape == (48, 64, 3) if size == (64, 48) else (46, 64, 3)  # sides are even


def test_colours_are_rgb(tmp_path):
    writer = VideoWriter(tmp_path / 'a.mp4', 10, (64, 48))
    writer.add(np.full((48, 64, 3), (250, 10, 10), np.uint8))
    writer.close()
    [frame] = VideoReader(str(tmp_path / 'a.mp4'))
    assert frame[..., 0].mean() > 200 and frame[..., 2].mean() < 50


@pytest.mark.parametrize('content', [b'', b'hello', None])
def test_a_video_without_frames_is_an_error(tmp_path, content):
    path = tmp_path / 'a.mp4'
    write(path, 0) if content is None else path.write_bytes(content)
    with pytest.raises(UserError, match=r'a\.mp4: it is no video that can be read, or one without'):
        VideoReader(str(path))


@pytest.mark.parametrize(
    'playlist',
    [
        '#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{other}\n#EXT-X-ENDLIST\n',
        'ffconcat version 1.0\nfile {name}\n',
    ],
)
@pytest.mark.parametrize('name', ['clip.mp4', 'clip.mkv'])
def test_a_playlist_in_the_place_of_a_video_reads_no_other_files(tmp_path, playlist, name):
    other = write(tmp_path / 'private.mp4', 5)
    path = tmp_path / name
    path.write_text(playlist.format(other=other, name=other.name))
    with pytest.raises(UserError, match='it is no video that can be read'):
        VideoReader(str(path))


@pytest.mark.parametrize(
    ('suffix', 'codec'), [('.avi', 'MJPG'), ('.mkv', 'mp4v'), ('.mov', 'mp4v'), ('.wmv', 'WMV2')]
)
def test_other_containers_are_read(tmp_path, suffix, codec):
    path = tmp_path / f'a{suffix}'
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*codec), 10, (64, 48))
    for _ in range(5):
        writer.write(np.full((48, 64, 3), 128, np.uint8))
    writer.release()
    assert len(list(VideoReader(str(path)))) == 5


def test_what_is_not_there_is_an_error():
    with pytest.raises(UserError, match=r'gone\.mp4 does not exist'):
        VideoReader('gone.mp4')
    with pytest.raises(UserError, match='a video is read from a file'):
        VideoReader('http://example.org/a.mp4')


def test_a_video_that_is_cut_off_gives_its_frames_and_an_error(tmp_path):
    path = write(tmp_path / 'a.avi', 60, (320, 240))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    frames = []
    with pytest.raises(UserError, match=r'cut off after \d+ of 60 frames'):
        frames.extend(VideoReader(str(path)))


def test_nothing_is_left_of_a_video_that_is_discarded(tmp_path):
    writer = VideoWriter(tmp_path / 'a.mp4', 10, (64, 48))
    writer.add(np.zeros((48, 64, 3), np.uint8))
    writer.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_size_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(UserError, match='cannot write a video of 20000x10 pixels'):
        VideoWriter(tmp_path / 'a.mp4', 10, (20000, 10))
    assert list(tmp_path.iterdir()) == []
