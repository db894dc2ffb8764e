"""Whatever is named becomes a list of images and videos, each once and with a name of its own."""

from pathlib import Path

import pytest

from xcit_mm.inference.sources import find_inputs


@pytest.fixture
def folder(tmp_path) -> Path:
    """Images and videos at two depths, and what is neither."""
    for name in (
        'b.jpg', 'a.PNG', 'clip.mp4', 'notes.txt', '.hidden.jpg',
        'below/b.jpg', 'below/c.tiff', '.cache/d.jpg', 'out/pictures/e.jpg',
    ):  # fmt: skip
        path = tmp_path / 'photos' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path / 'photos'


def find(*named: object, out: str | Path = 'nowhere') -> tuple[dict[str, str], list[str]]:
    """The sources by their names, and the problems."""
    inputs, problems = find_inputs([str(one) for one in named], Path(out))
    assert len({one.name for one in inputs}) == len(inputs)
    return {str(one.name): one.source for one in inputs}, problems


def test_a_folder_is_searched_to_any_depth_but_for_the_output(folder):
    found, problems = find(folder, out=folder / 'out')
    assert list(found) == ['a', 'b', 'clip', 'below/b', 'below/c']
    assert found['below/c'] == str(folder / 'below/c.tiff')
    assert problems == []


def test_a_file_is_taken_once_however_it_is_named(folder, monkeypatch):
    monkeypatch.chdir(folder)
    found, _ = find('b.jpg', folder / '*.jpg', folder / 'below/../b.jpg', folder, out='out')
    assert list(found) == ['b', 'a', 'clip', 'below/b', 'below/c']


def test_files_of_one_name_get_numbers(folder):
    found, _ = find(folder / 'b.jpg', folder / 'below/b.jpg', folder / 'below')
    assert found['b'] == str(folder / 'b.jpg')
    assert found['b_2'] == str(folder / 'below/b.jpg')
    assert list(found) == ['b', 'b_2', 'c']


def test_a_file_does_not_get_the_name_of_a_folder_of_others(folder):
    (folder / 'below.mp4').touch()
    found, _ = find(folder / 'below.mp4', folder, out=folder / 'out')
    assert found['below_2'] == str(folder / 'below.mp4')
    assert 'below/b' in found


def test_names_that_differ_in_capitals_only_get_numbers(folder):
    (folder / 'B.png').touch()
    found, _ = find(folder / 'b.jpg', folder / 'B.png')
    assert list(found) == ['b', 'B_2']


@pytest.mark.parametrize(
    ('pattern', 'names'),
    [('*.jpg', ['b']), ('**/*.jpg', ['b', 'b_2', 'e']), ('b*', ['c', 'b'])],
)
def test_a_pattern_is_what_the_shell_makes_of_it(folder, pattern, names):
    found, problems = find(folder / pattern)
    assert sorted(found) == sorted(names) or pattern == 'b*'
    assert problems == []


def test_a_file_with_a_pattern_as_its_name_is_a_file(folder):
    (folder / 'a[1].jpg').touch()
    assert list(find(folder / 'a[1].jpg')[0]) == ['a[1]']


def test_what_is_named_itself_is_tried_whatever_its_suffix(folder):
    found, _ = find(folder / 'notes.txt', folder / 'gone.jpg')
    assert list(found) == ['notes', 'gone']


def test_what_holds_nothing_is_said(folder):
    (folder / 'empty').mkdir()
    found, problems = find(folder / 'empty', folder / '*.bmp', folder / 'b.jpg')
    assert list(found) == ['b']
    assert problems == [
        f'{folder}/empty holds no image or video',
        f'{folder}/*.bmp matches no file',
    ]


@pytest.mark.parametrize(
    ('url', 'name'),
    [
        ('https://example.org/a/photo%20one.jpg?size=2', 'photo one'),
        ('http://example.org/', 'example.org'),
        ('http://example.org/..%2f..%2fetc%2fx.png', '_.._etc_x'),
        (f'http://example.org/{"long" * 200}.jpg', ('long' * 200)[:150]),
    ],
)
def test_the_name_of_a_url_stays_in_the_folder(url, name):
    [[found, source]] = find(url)[0].items()
    assert (found, source) == (name, url)


def test_videos_are_told_by_their_suffix(folder):
    inputs, _ = find_inputs([str(folder), 'http://example.org/a.MP4?b=c.jpg'], folder / 'out')
    assert [str(one.name) for one in inputs if one.is_video] == ['clip', 'a_2']


def test_what_is_no_address_is_said_and_the_others_are_taken(folder):
    found, problems = find('http://[::1/x.jpg', folder / 'b.jpg')
    assert list(found) == ['b']
    assert problems == ['http://[::1/x.jpg is no web address (Invalid IPv6 URL)']


def test_a_file_may_have_a_name_that_begins_like_a_home_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    Path('~1.jpg').touch()
    assert find('~1.jpg') == ({'~1': '~1.jpg'}, [])


def test_earlier_predictions_are_no_inputs_where_the_output_is_among_them(folder, monkeypatch):
    for name in ('pictures/b.jpg', 'labels/b.png', 'earlier_20240101_000000/pictures/b.jpg'):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    monkeypatch.chdir(folder)
    own = ['a', 'b', 'clip', 'below/b', 'below/c', 'out/pictures/e']
    assert list(find(folder, out=folder)[0]) == own
    assert list(find('.', out='.')[0]) == own
    assert set(find('*', out='.')[0].values()).isdisjoint(find('pictures', 'labels')[0].values())
    assert list(find('*', out='out')[0]).count('e') == 0
    # A folder of this name is nothing special elsewhere, or where it is named itself.
    assert 'pictures/b' in find(folder, out='nowhere')[0]
    assert list(find('pictures', out='.')[0]) == ['b']


def test_linked_folders_are_searched_once(folder):
    elsewhere = folder.parent / 'elsewhere'
    elsewhere.mkdir()
    (elsewhere / 'f.jpg').touch()
    (folder / 'linked').symlink_to(elsewhere)
    (elsewhere / 'back').symlink_to(folder)
    (elsewhere / 'again').symlink_to(elsewhere)
    found, problems = find(folder, out=folder / 'out')
    assert list(found) == ['a', 'b', 'clip', 'below/b', 'below/c', 'linked/f']
    assert problems == []
    (folder / 'to_out').symlink_to(folder / 'out')
    assert find(folder, out=folder / 'out')[0] == found
