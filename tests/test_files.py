import pytest

from xcit_mm import UserError
from xcit_mm.files import write_whole


def test_a_folder_in_the_place_of_a_file_is_said(tmp_path):
    (tmp_path / 'run.json').mkdir()
    with pytest.raises(UserError, match=r'run\.json is a folder, where a file is to be written'):
        write_whole(tmp_path / 'run.json').__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ['run.json']
