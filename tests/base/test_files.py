"""Files and folders that are written whole or not at all."""

import pytest

from xcit_mm.base.files import write_beside, write_files


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
    assert (tmp_path / 'a.txt').read_text() == 'before'
    assert [path.name for path in tmp_path.iterdir()] == ['a.txt']


def test_earlier_files_are_set_aside_unless_they_are_the_same(tmp_path):
    assert (
        write_files(tmp_path, {tmp_path / 'a/b': b'1'}) == f'Everything was written to {tmp_path}'
    )
    assert write_files(tmp_path, {tmp_path / 'a/b': b'1'}) == 'Everything was already there'
    assert 'Earlier files are now in' in write_files(tmp_path, {tmp_path / 'a/b': b'2'})
    (aside,) = tmp_path.glob('earlier_*')
    assert (aside / 'a/b').read_bytes() == b'1' and (tmp_path / 'a/b').read_bytes() == b'2'
