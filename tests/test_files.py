"""Files and folders that are written whole or not at all."""

import pytest

from xcit_mm.errors import UserError
from xcit_mm.files import write_beside


def test_a_file_or_folder_appears_when_it_is_complete(tmp_path):
    for text in ('first', 'second'):  # which replaces the first
        with write_beside(tmp_path / 'a.txt') as made, write_beside(tmp_path / 'b') as folder:
            made.write_text(text)
            folder.mkdir()
            (folder / text).write_text(text)
            assert not (tmp_path / 'b' / text).exists()
        assert (tmp_path / 'a.txt').read_text() == text
        assert [path.name for path in (tmp_path / 'b').iterdir()] == [text]
    assert sorted(path.name for path in tmp_path.iterdir()) == ['a.txt', 'b']


def test_what_was_there_stays_after_an_error(tmp_path):
    (tmp_path / 'a.txt').write_text('before')
    with pytest.raises(OSError, match='full'), write_beside(tmp_path / 'a.txt') as made:
        made.write_text('a part')
        raise OSError('full')
    (tmp_path / 'b').mkdir()
    with pytest.raises(UserError) as raised, write_beside(tmp_path / 'b') as made:
        made.write_text('a file')
    message = f'{tmp_path / "b"} is a folder, but a file must go there: move it away'
    assert str(raised.value) == message
    assert (tmp_path / 'a.txt').read_text() == 'before'
    assert sorted(path.name for path in tmp_path.iterdir()) == ['a.txt', 'b']
