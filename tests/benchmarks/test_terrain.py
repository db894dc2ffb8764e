"""Drawings of heights: reproducible, lit from the left, and continuous over a scene."""

import numpy as np
import pytest
import rasterio

from benchmarks import terrain
from xcit_mm.base.errors import UserError


def test_equal_seeds_draw_equal_heights_and_others_do_not(tmp_path):
    for name, seed in dict(a=0, b=0, c=1).items():
        terrain.make_heights(tmp_path / name, terrain.HeightsSpec(2, 1, seed))
    files = [sorted((tmp_path / name).rglob('0*')) for name in 'abc']
    a, b, c = ([path.read_bytes() for path in paths] for paths in files)
    assert a == b and len(a) == 6
    assert not {*a} & {*c}
    with pytest.raises(UserError, match='exists: move it away'):
        terrain.make_heights(tmp_path / 'a')


def test_a_scene_continues_across_the_drawings_of_its_size(tmp_path):
    terrain.make_height_scene(tmp_path / 'scene', 2)
    with rasterio.open(tmp_path / 'scene' / terrain.HEIGHTS) as file:
        heights = file.read(1)
    assert heights.shape == (320, 320)
    assert np.median(np.abs(np.diff(heights, axis=1)[:, 159])) < 1
