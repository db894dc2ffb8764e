"""Each image or video that is named is found once, gets a name, and is read or an error."""

from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest

from xcit_mm import UserError
from xcit_mm.predict import sources
from xcit_mm.predict.sources import (
    MAX_NAME,
    Frame,
    batches,
    find_inputs,
    mosaic_name,
    read_image,
)
from xcit_mm.predict.video import read_video, write_video
from xcit_mm.predict.write.written import is_output

# Images and videos at two depths, and other files. A linked folder is not searched.
FILES = (
    *('a.PNG', 'b.jpg', 'clip.mp4', 'notes.txt', '.hidden.jpg', '.cache/d.jpg'),
    *('below/b.jpg', 'below/c.tiff', 'out/pictures/e.jpg'),
)
ALL = 'a b clip below/b below/c'
SAME = 'B.png', 'below.mp4'
EARLIER = 'pictures/b.jpg', 'labels/b.png', 'earlier_1/pictures/b.jpg'


@pytest.mark.parametrize(
    ('arguments', 'out', 'more', 'names'),
    [
        ('.', 'out', (), ALL),
        ('b.jpg *.jpg below/../b.jpg .', 'out', (), 'b a clip below/b below/c'),  # each file once
        ('b.jpg below/b.jpg B.png below.mp4 below', 'out', SAME, 'b b_2 B_3 below c'),
        ('below.mp4 .', 'out', SAME, 'below_2 B a b_2 clip below/b below/c'),
        ('**/*.jpg', 'nowhere', (), 'b b_2 e'),
        ('notes.txt gone.jpg a[1].jpg', 'out', ['a[1].jpg'], 'notes gone a[1]'),
        ('.', '.', EARLIER, f'{ALL} out/pictures/e'),
        ('*', '.', EARLIER, 'a b b_2 c clip notes pictures/e'),
        # Folders of these names are inputs elsewhere, or if they are named themselves.
        ('.', 'nowhere', EARLIER, f'{ALL} earlier_1/pictures/b labels/b out/pictures/e pictures/b'),
        ('pictures', '.', EARLIER, 'b'),
        ('*.bmp empty *.bmp', 'nowhere', ['empty/notes.txt'], ''),
    ],
)
def test_what_is_found_and_its_names(arguments, out, more, names, tmp_path, monkeypatch):
    for name in (*FILES, *more):
        path = tmp_path / 'photos' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path / 'photos')
    Path('linked').symlink_to(tmp_path)
    inputs, problems, _ = find_inputs(arguments.split(), partial(is_output, folder=Path(out)))
    assert ' '.join(inputs) == names
    assert 'below/c' not in inputs or inputs['below/c'] == 'below/c.tiff'
    nothing = ['*.bmp matches no file', 'empty holds no image or video']
    assert problems == ([] if names else nothing)


SCENES = (
    *('a.vrt', 'b.svs', 'c.zarr/zarr.json', 'c.zarr/c/0/0.png', 'd.ome.tif', 'e.BTF'),
    *('f.mrxs', 'f/Slidedat.ini', 'f/g.png', 'h.zarr', 'dicom/a.dcm', 'dicom/b.dcm'),
    *('slide/a.vms', 'slide/i.jpg', 'slide/m.jpg', 'slide/other.jpg', 'a.tfw', 'a.tif.aux.xml'),
)


def test_scenes_and_slides_in_folders_are_one_image_each(tmp_path, monkeypatch):
    for name in SCENES:
        path = tmp_path / 'scenes' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('[Virtual Microscope Specimen]\nImageFile=i.jpg\nMapFile(0) = m.jpg\r\n')
    monkeypatch.chdir(tmp_path)
    inputs, problems, notes = find_inputs(['scenes'], lambda path: False)
    found = 'a.vrt b.svs c.zarr d.ome.tif e.BTF f.mrxs dicom/a.dcm slide/a.vms slide/other.jpg'
    assert [*inputs.values()] == [f'scenes/{name}' for name in found.split()]
    assert problems == []
    skipped = '3 files that are not images or videos were skipped (.tfw, .xml, .zarr)'
    assert notes == [f'scenes: {skipped}']
    assert find_inputs(['scenes/c.zarr'], lambda path: False) == ({'c': 'scenes/c.zarr'}, [], [])
    (tmp_path / 'scenes/slide/notes').touch()
    _, _, notes = find_inputs(['scenes/slide'], lambda path: False)
    assert notes == ['scenes/slide: 1 file that is not an image or a video was skipped (no suffix)']


def test_scenes_that_are_only_read_by_windows_name_the_option(tmp_path):
    (tmp_path / 'a.zarr').mkdir()
    (tmp_path / 'a.SVS').touch()
    for name in ('a.zarr', 'a.SVS'):
        with pytest.raises(UserError, match=rf'{name} is read window by window: add --stream'):
            read_image(str(tmp_path / name))


def test_the_name_of_a_url_stays_in_the_folder():
    for url, name in {
        'https://example.org/a/photo%20one.jpg?size=2': 'photo one',
        'http://example.org/..%2f..%2fetc%2fx.png': '_.._etc_x',
        'http://example.org/..%5C..%5Cnul.png': '_.._nul',
        'http://example.org/C:nul.png': 'C_nul',
        f'http://example.org/{"long" * 200}.jpg': ('long' * 200)[:150],
    }.items():
        assert find_inputs([url], lambda path: False) == ({name: url}, [], [])


@pytest.mark.parametrize(
    ('argument', 'name'),
    [
        ('tiles/a.tif', 'a'),
        ('tiles', 'tiles'),
        ('tiles/*.tif', 'tiles'),
        ('*.tif', 'scene'),
        ('..', 'scenes'),
        ('[a].tif', '[a]'),  # a file
        (r'C:\a|b.tif', 'C__a_b'),  # no name on Windows
        ('CON.backup.tif', '_CON.backup'),
        (f'{"a" * 200}.tif', 'a' * MAX_NAME),
    ],
)
def test_the_name_of_a_mosaic_is_a_file_name(argument, name, tmp_path, monkeypatch):
    (tmp_path / 'scenes/scene/tiles').mkdir(parents=True)
    monkeypatch.chdir(tmp_path / 'scenes/scene')
    Path('[a].tif').touch()
    assert mosaic_name(argument) == name


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


@pytest.mark.parametrize('name', ['clip.mp4', 'clip.mkv'])
@pytest.mark.parametrize(
    'content',
    [
        '#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nprivate.mp4\n#EXT-X-ENDLIST\n',
        'ffconcat version 1.0\nfile private.mp4\n',
    ],
)
def test_a_file_that_is_not_a_video_is_an_error_and_reads_no_other_file(tmp_path, content, name):
    write_redder(tmp_path / 'private.mp4', 5)
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match='it is not a readable video, or it has no'):
        read_video(str(tmp_path / name))


def test_another_container_is_read(tmp_path):
    path = str(tmp_path / 'a.wmv')
    writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*'WMV2'), 10, (64, 48))
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
