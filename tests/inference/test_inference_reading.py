"""Images are read from files and the web, or a sentence says why not."""

import io
from pathlib import Path

import pytest
from helpers.file_server import serving
from PIL import Image

from xcit_mm import UserError
from xcit_mm.inference import reading
from xcit_mm.inference.reading import read_image


def test_a_file_may_have_a_name_that_begins_like_a_home_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    Path('home').mkdir()
    for name in ('~1.jpg', 'home/2.jpg'):
        Image.new('RGB', (8, 6)).save(name)
    assert read_image('~1.jpg').shape == read_image('~/2.jpg').shape == (6, 8, 3)


def test_an_image_of_the_web_is_read_up_to_a_size(monkeypatch):
    png = io.BytesIO()
    Image.new('RGB', (8, 6)).save(png, 'PNG')
    with serving() as server:
        server.files['/gr%C3%BCn.png'] = png.getvalue()
        assert read_image(server.url('/grün.png')).shape == (6, 8, 3)
        monkeypatch.setattr(reading, 'MAX_BYTES', len(png.getvalue()) - 1)
        with pytest.raises(UserError, match=r'has more than .* MiB; download it yourself'):
            read_image(server.url('/grün.png'))
        server.go_away()
        with pytest.raises(UserError, match=r'cannot be reached .*; fetch it on another machine'):
            read_image(server.url('/grün.png'))
