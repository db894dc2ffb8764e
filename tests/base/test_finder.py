"""The files below a folder: links, hidden files, and names that are spelled in several ways."""

from pathlib import Path
from unicodedata import normalize
from urllib.parse import quote

import pytest
from PIL import Image

from xcit_mm import UserError
from xcit_mm.base.finder import IMAGE_SUFFIXES, LeftOut, find_files, find_spelled, subfolders
from xcit_mm.data.transforms.decode import decode


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def names(folder: Path, *args) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in find_files(folder, *args)]


def test_linked_folders_are_read_once_and_under_their_own_names(tmp_path):
    root, disk = fill(tmp_path / 'root', 'b/1.jpg'), fill(tmp_path / 'disk', 'c/2.jpg')
    (root / 'a_link_of_b').symlink_to(root / 'b')
    (root / 'b/loop').symlink_to(root)
    (root / 'd').symlink_to(disk)
    (disk / 'back').symlink_to(root)
    (root / 'again').symlink_to(disk / 'c')
    assert sorted(names(root)) == ['again/2.jpg', 'b/1.jpg']
    assert names(root / 'd') == ['c/2.jpg', 'back/b/1.jpg']
    assert names(root / 'b') == ['1.jpg']


def test_hidden_files_are_left_out_and_counted_with_their_reasons(tmp_path):
    hidden = '.ipynb_checkpoints/a-checkpoint.jpg', '._a.jpg', '__MACOSX/a.jpg', '@eaDir/a.jpg'
    fill(tmp_path, *hidden, '.DS_Store', 'Thumbs.db', 'a.JPG', 'b.heic', 'c.HEIC', 'd.pdf', 'a.txt')
    left = LeftOut()
    assert names(tmp_path, IMAGE_SUFFIXES, left) == ['a.JPG']
    (hidden, others) = left.remarks()
    assert [*left.remarks().values()] == [4, 3]
    assert 'Hidden files and folders, such as' in hidden
    assert others == 'Files of other types (.heic, .pdf), left out'
    assert subfolders(tmp_path) == []
    with pytest.raises(UserError, match='cannot be read'):
        names(tmp_path / 'nowhere')


def test_images_of_every_suffix_are_decoded(tmp_path):
    kinds = {k: v for k, v in Image.registered_extensions().items() if v in Image.SAVE}
    for suffix in IMAGE_SUFFIXES:
        image = Image.new('L' if suffix == '.pgm' else 'RGB', (9, 7), 200)
        mode = '1' if suffix == '.pbm' else image.mode
        image.convert(mode).save(tmp_path / f'a{suffix}', kinds[suffix])
        assert decode((tmp_path / f'a{suffix}').read_bytes()).shape == (7, 9, 3), suffix


@pytest.mark.parametrize('spell', [lambda n: normalize('NFD', n), quote, str.upper])
def test_a_name_that_is_spelled_in_another_way_is_found_if_only_one_is_like_it(tmp_path, spell):
    file = fill(tmp_path, 'Äpfel 1/é.jpg') / 'Äpfel 1/é.jpg'
    assert find_spelled(file) == [file]
    path = tmp_path / spell('Äpfel 1') / spell('é.jpg')
    assert find_spelled(path) == [file]
    assert find_spelled(path.with_suffix(''), IMAGE_SUFFIXES) == [file]
    for separator in ('\\', '%2F'):
        assert find_spelled(tmp_path / f'{spell("Äpfel 1")}{separator}é.jpg') == [file]
    assert find_spelled(tmp_path / 'Äpfel 2/é.jpg') == []
    fill(file.parent, 'É.JPG')
    assert len(find_spelled(tmp_path / 'äpfel 1/É.jpg')) == 2
