"""Files and folders that are written whole or not at all."""

from pathlib import Path

import pytest

from xcit_mm.errors import UserError
from xcit_mm.files import write_beside, write_files


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


def test_more_files_than_a_process_may_open_are_written(tmp_path):
    resource = pytest.importorskip('resource', reason='Windows')
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = {tmp_path / f'{i}/{i}.txt': str(i).encode() for i in range(30)}
    with Path('/dev/null').open('rb') as last:
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno() + 10, limits[1]))
        try:
            write_files(tmp_path, files)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    found = {path: path.read_bytes() for path in tmp_path.rglob('*') if path.is_file()}
    assert found == files


def test_of_several_files_all_or_none_are_written(tmp_path):
    (tmp_path / 'b').mkdir()
    with pytest.raises(UserError, match='b is a folder, but a file must go there'):
        write_files(tmp_path, {tmp_path / name: b'new' for name in 'abc'})
    assert [path.name for path in tmp_path.iterdir()] == ['b']
