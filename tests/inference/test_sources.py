"""Each image or video that is named is found once, gets a name, and is read or an error."""

from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest

from xcit_mm import UserError
from xcit_mm.inference import sources
from xcit_mm.inference.sources import Frame, batches, find_inputs
from xcit_mm.inference.video import read_video, write_video
from xcit_mm.inference.written import is_output
from xcit_mm.progress import ImageProgress


@pytest.fixture
def folder(tmp_path) -> Path:
    """Images and videos at two depths, other files, and a linked folder, which is not searched."""
    for name in (
        'b.jpg', 'a.PNG', 'clip.mp4', 'notes.txt', '.hidden.jpg',
        'below/b.jpg', 'below/c.tiff', '.cache/d.jpg', 'out/pictures/e.jpg',
    ):  # fmt: skip
        path = tmp_path / 'photos' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / 'photos/linked').symlink_to(tmp_path)
    return tmp_path / 'photos'


def find(*arguments: object, out: str | Path = 'nowhere') -> tuple[dict[str, str], list[str]]:
    return find_inputs(list(map(str, arguments)), partial(is_output, folder=Path(out)))


def test_a_folder_is_searched_to_any_depth_except_for_the_output(folder, monkeypatch):
    monkeypatch.chdir(folder)
    inputs, problems = find(folder, out=folder / 'out')
    assert list(inputs) == ['a', 'b', 'clip', 'below/b', 'below/c'] and problems == []
    assert inputs['below/c'] == str(folder / 'below/c.tiff')
    # A file is taken once, however it is named.
    inputs, _ = find('b.jpg', folder / '*.jpg', folder / 'below/../b.jpg', folder, out='out')
    assert list(inputs) == ['b', 'a', 'clip', 'below/b', 'below/c']


def test_files_of_one_name_get_numbers(folder):
    for name in ('B.png', 'below.mp4'):
        (folder / name).touch()
    arguments = [folder / name for name in ('b.jpg', 'below/b.jpg', 'B.png', 'below.mp4', 'below')]
    assert list(find(*arguments)[0]) == ['b', 'b_2', 'B_3', 'below', 'c']
    inputs, _ = find(folder / 'below.mp4', folder, out=folder / 'out')
    assert inputs['below_2'] == str(folder / 'below.mp4') and 'below/b' in inputs


def test_a_pattern_is_expanded_and_a_file_may_have_any_name(folder, monkeypatch):
    (folder / 'empty').mkdir()
    for pattern, names, problems in (
        ('*.jpg', {'b'}, []),
        ('**/*.jpg', {'b', 'b_2', 'e'}, []),
        ('b*', {'c', 'b', 'b_2'}, []),
        ('*.bmp', set(), [f'{folder}/*.bmp matches no file']),
        ('empty', set(), [f'{folder}/empty holds no image or video']),
    ):
        inputs, reported = find(folder / pattern)
        assert (set(inputs), reported) == (names, problems)
    monkeypatch.chdir(folder)
    Path('a[1].jpg').touch()
    assert list(find('notes.txt', 'gone.jpg', 'a[1].jpg')[0]) == ['notes', 'gone', 'a[1]']


def test_the_name_of_a_url_stays_in_the_folder():
    for url, name in {
        'https://example.org/a/photo%20one.jpg?size=2': 'photo one',
        'http://example.org/..%2f..%2fetc%2fx.png': '_.._etc_x',
        f'http://example.org/{"long" * 200}.jpg': ('long' * 200)[:150],
    }.items():
        assert find(url) == ({name: url}, [])


def test_earlier_predictions_are_not_inputs(folder, monkeypatch):
    for name in ('pictures/b.jpg', 'labels/b.png', 'earlier_20240101_000000/pictures/b.jpg'):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    monkeypatch.chdir(folder)
    images = ['a', 'b', 'clip', 'below/b', 'below/c', 'out/pictures/e']
    assert list(find('.', out='.')[0]) == list(find(folder, out=folder)[0]) == images
    assert {'b_3', 'pictures/b'}.isdisjoint(find('*', out='.')[0])
    # Folders of these names are inputs elsewhere, or if they are named themselves.
    assert 'pictures/b' in find(folder, out='nowhere')[0]
    assert list(find('pictures', out='.')[0]) == ['b']


def test_a_batch_holds_fewer_of_large_images(monkeypatch):
    monkeypatch.setattr(sources, 'MAX_PIXELS', 100 * 100)
    for height, expected in ((10, [3, 2]), (40, [2, 2, 1]), (300, [1] * 5)):
        frames = [Frame('a.jpg', 'a', np.zeros((height, 100, 3), np.uint8))] * 5
        assert [len(batch) for batch in batches(frames, 3)] == expected


def write_redder(path: Path, number: int, size: tuple[int, int] = (64, 48)) -> Path:
    with write_video(path, 10, size) as add:
        for i in range(number):
            add(np.full((*size[::-1], 3), (20 * (i % 12), 10, 10), np.uint8))
    return path


@pytest.mark.parametrize(('size', 'shape'), [((64, 48), (48, 64, 3)), ((65, 47), (46, 64, 3))])
def test_a_written_video_is_read(tmp_path, size, shape):  # without the last pixel of an odd side
    length, rate, frames = read_video(str(write_redder(tmp_path / 'a.mp4', 7, size)))
    assert (length, rate) == (7, 10)
    frames = list(frames)
    assert [round(frame[..., 0].mean() / 20) for frame in frames] == list(range(7))  # red
    assert frames[6][..., 2].mean() < 30 and frames[0].shape == shape


def test_a_file_that_is_not_a_video_is_an_error_and_reads_no_other_file(tmp_path):
    write_redder(tmp_path / 'private.mp4', 5)
    for content in (
        'hello',
        '#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nprivate.mp4\n#EXT-X-ENDLIST\n',
        'ffconcat version 1.0\nfile private.mp4\n',
    ):
        for name in ('clip.mp4', 'clip.mkv'):
            (tmp_path / name).write_text(content)
            with pytest.raises(UserError, match='it is not a readable video, or it has no'):
                read_video(str(tmp_path / name))


@pytest.mark.parametrize(('suffix', 'codec'), [('avi', 'MJPG'), ('mkv', 'mp4v'), ('wmv', 'WMV2')])
def test_other_containers_are_read(tmp_path, suffix, codec):
    path = str(tmp_path / f'a.{suffix}')
    writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*codec), 10, (64, 48))
    for _ in range(5):
        writer.write(np.full((48, 64, 3), 128, np.uint8))
    writer.release()
    assert len(list(read_video(path)[2])) == 5


def test_a_video_that_is_cut_off_gives_its_frames_and_an_error(tmp_path):
    path = write_redder(tmp_path / 'a.avi', 60, (320, 240))
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
    with pytest.raises(OSError, match='cannot write a video of 20000x10 pixels'):
        write_video(tmp_path / 'a.mp4', 10, (20000, 10)).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_no_bar_counts_images_where_none_is_left(capsys):
    with ImageProgress() as progress:
        progress.expect(1)
        progress.give_up('broken.png: not an image')
    assert '0/0' not in capsys.readouterr().err
