"""Each image or video that is named is found once, gets a name of its own, and is read."""

import io
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.file_server import serving
from PIL import Image

from xcit_mm import UserError
from xcit_mm.inference import sources
from xcit_mm.inference.output import is_output
from xcit_mm.inference.sources import Frame, batches, find_inputs, read_image


@pytest.fixture
def folder(tmp_path) -> Path:
    """Images and videos at two depths, and other files."""
    for name in (
        'b.jpg', 'a.PNG', 'clip.mp4', 'notes.txt', '.hidden.jpg',
        'below/b.jpg', 'below/c.tiff', '.cache/d.jpg', 'out/pictures/e.jpg',
    ):  # fmt: skip
        path = tmp_path / 'photos' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
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
    for pattern, names in {
        '*.jpg': {'b'},
        '**/*.jpg': {'b', 'b_2', 'e'},
        'b*': {'c', 'b', 'b_2'},
    }.items():
        inputs, problems = find(folder / pattern)
        assert (set(inputs), problems) == (names, [])
    monkeypatch.chdir(folder)
    Path('a[1].jpg').touch()
    assert list(find('notes.txt', 'gone.jpg', 'a[1].jpg')[0]) == ['notes', 'gone', 'a[1]']


def test_arguments_without_inputs_are_reported(folder):
    (folder / 'empty').mkdir()
    inputs, problems = find(folder / 'empty', folder / '*.bmp', folder / 'b.jpg')
    assert list(inputs) == ['b']
    empty, pattern = f'{folder}/empty holds no image or video', f'{folder}/*.bmp matches no file'
    assert problems == [empty, pattern]


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
    own = ['a', 'b', 'clip', 'below/b', 'below/c', 'out/pictures/e']
    assert list(find('.', out='.')[0]) == list(find(folder, out=folder)[0]) == own
    assert {'b_3', 'pictures/b'}.isdisjoint(find('*', out='.')[0])
    # Folders of these names are inputs elsewhere, or if they are named themselves.
    assert 'pictures/b' in find(folder, out='nowhere')[0]
    assert list(find('pictures', out='.')[0]) == ['b']


def test_linked_folders_are_not_searched(folder):
    (folder / 'linked').symlink_to(folder.parent)
    assert list(find(folder, out=folder / 'out')[0]) == ['a', 'b', 'clip', 'below/b', 'below/c']


def test_an_image_on_the_web_is_read_up_to_a_size(monkeypatch):
    png = io.BytesIO()
    Image.new('RGB', (8, 6)).save(png, 'PNG')
    with serving() as server:
        server.files['/gr%C3%BCn.png'] = png.getvalue()
        assert read_image(server.url('/grün.png')).shape == (6, 8, 3)
        monkeypatch.setattr(sources, 'MAX_DOWNLOAD', len(png.getvalue()) - 1)
        with pytest.raises(UserError, match=r'has more than .* MiB'):
            read_image(server.url('/grün.png'))
        server.go_away()
        with pytest.raises(UserError, match=r'cannot be reached .*; download it yourself'):
            read_image(server.url('/grün.png'))
    with pytest.raises(UserError, match='is not a web address'):
        read_image('http://[::1/x.jpg')


@pytest.mark.parametrize(
    ('height', 'number', 'batch_size', 'expected'),
    [(10, 7, 3, [3, 3, 1]), (40, 5, 4, [2, 2, 1]), (300, 3, 4, [1, 1, 1])],
)
def test_a_batch_holds_fewer_of_large_images(monkeypatch, height, number, batch_size, expected):
    monkeypatch.setattr(sources, 'MAX_PIXELS', 100 * 100)
    frames = [Frame('a.jpg', 'a', np.zeros((height, 100, 3), np.uint8))] * number
    assert [len(batch) for batch in batches(frames, batch_size)] == expected
