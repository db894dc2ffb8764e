"""Files and folders that are written whole or not at all."""

import errno
from contextlib import nullcontext
from itertools import count, islice
from pathlib import Path
from unittest.mock import Mock

import pytest

from xcit_mm.base import files
from xcit_mm.base.errors import UserError
from xcit_mm.base.files import put_in_place, write_beside, write_files


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


@pytest.mark.parametrize('failures', [1, 2])
def test_what_a_program_has_open_is_replaced_later_or_stays(tmp_path, monkeypatch, failures):
    monkeypatch.setattr(files, 'OPENS_FOLDERS', False)  # as on Windows
    monkeypatch.setattr(files, 'PAUSES', (0,))
    (tmp_path / 'a').mkdir()
    (tmp_path / 'a/before').touch()
    rename, errors = Path.replace, [PermissionError(errno.EACCES, 'in use')] * failures

    def replace(path: Path, target: Path) -> Path:
        if path.name == target.name and errors:  # not the earlier folder, which moves away
            raise errors.pop()
        return rename(path, target)

    monkeypatch.setattr(Path, 'replace', replace)
    message = 'a cannot be replaced .*in use.*: close the program that has it open, or move it away'
    outcome = nullcontext() if failures == 1 else pytest.raises(UserError, match=message)
    with outcome, write_beside(tmp_path / 'a') as made:
        made.mkdir()
        (made / 'after').touch()
    expected = 'after' if failures == 1 else 'before'
    assert [path.name for path in tmp_path.rglob('*')] == ['a', expected]


def test_a_system_that_replaces_open_files_needs_no_pause(tmp_path, monkeypatch):
    monkeypatch.setattr(files.time, 'sleep', pytest.fail)
    made = tmp_path / 'a'
    made.touch()
    monkeypatch.setattr(Path, 'replace', Mock(side_effect=PermissionError))
    with pytest.raises(UserError, match=r'b cannot be replaced \(PermissionError'):
        put_in_place(made, tmp_path / 'b')


def test_more_files_than_a_process_may_open_are_written(tmp_path):
    resource = pytest.importorskip('resource', reason='Windows')
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = {tmp_path / f'{i}/{i}.txt': str(i).encode() for i in range(30)}
    taken = {int(path.name) for path in Path('/dev/fd').iterdir()}
    eleventh = next(islice((n for n in count() if n not in taken), 10, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (eleventh, limits[1]))  # ten more can be opened
    try:
        write_files(tmp_path, wanted)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    found = {path: path.read_bytes() for path in tmp_path.rglob('*') if path.is_file()}
    assert found == wanted


def test_of_several_files_all_or_none_are_written(tmp_path):
    (tmp_path / 'b').mkdir()
    with pytest.raises(UserError, match='b is a folder, but a file must go there'):
        write_files(tmp_path, {tmp_path / name: b'new' for name in 'abc'})
    assert [path.name for path in tmp_path.iterdir()] == ['b']
