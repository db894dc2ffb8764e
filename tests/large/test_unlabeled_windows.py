"""Windows of large images without labels: what they show, their order, and what is refused."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rasterio
from mmengine.registry import DATASETS, DefaultScope

from xcit_mm.base.environment import require_framework
from xcit_mm.base.geometry import Window
from xcit_mm.large.data.read_window import ReadWindow

SIZES = {'a': (150, 211), 'inside/b': (60, 64)}
SIDE = 48
WHOLE = [dict(type='ReadWindow', bands=dict(channels=5)), dict(type='PackImage')]
CROPS = dict(type='MultiCrop', global_size=32, local_size=16, num_local=3)


@pytest.fixture
def root(tmp_path) -> Path:
    """Two scenes of five bands of 16 bits, without data in the left half of the second."""
    (tmp_path / 'inside').mkdir()
    random = np.random.default_rng(0)
    for name, size in SIZES.items():
        values = random.integers(1, 2**12, (5, *size), np.uint16)
        if 'b' in name:
            values[..., : size[1] // 2] = 0
        options = dict(height=size[0], width=size[1], count=5, dtype='uint16', nodata=0)
        with rasterio.open(tmp_path / f'{name}.tif', 'w', 'GTiff', **options) as file:
            file.write(values)
    return tmp_path


@pytest.fixture
def drawn(monkeypatch) -> list[tuple[str, Window]]:
    """The scenes and windows that are read."""
    windows, original = [], ReadWindow.__call__

    def record(transform, results):
        windows.append((results['img_path'], results['window']))
        return original(transform, results)

    monkeypatch.setattr(ReadWindow, '__call__', record)
    return windows


def build(root: Path, **values):
    require_framework('mmengine')
    config = dict(type='UnlabeledWindows', data_prefix=dict(img=str(root)), window=SIDE)
    with DefaultScope.overwrite_default_scope('mmengine'):
        return DATASETS.build(config | dict(pipeline=WHOLE) | values)


def read(path: str) -> np.ndarray:
    with rasterio.open(path) as file:
        return file.read()


def test_a_sample_is_the_window_of_the_file(root, drawn):
    assert len(build(root)) == 4 * 5 + 2 * 2
    dataset = build(root, min_valid=0.4, length=60, test_mode=True)
    assert not dataset.metainfo
    for index in range(60):
        sample = dataset[index]
        path, window = drawn[-1]
        values = read(path)[(slice(None), *window)]
        assert (values[0] > 0).mean() >= 0.4
        assert np.array_equal(sample['inputs'], values.astype(np.float32))
        assert sample['data_samples'].img_path == path
    assert {path for path, _ in drawn} == {str(root / f'{name}.tif') for name in SIZES}


def test_the_pipeline_of_a_pretraining_crops_the_windows(root):
    sample = build(root, pipeline=[WHOLE[0], CROPS, WHOLE[1]])[0]
    large, small = sample['inputs']
    assert (large.shape, small.shape) == ((2, 5, 32, 32), (3, 5, 16, 16))
    assert large.isfinite().all() and large.std() > 100


def test_the_scenes_are_whole_images_for_statistics(root):
    scenes = build(root).scenes()
    assert [scenes[i]['img'].shape for i in range(len(scenes))] == [
        (*size, 5) for size in SIZES.values()
    ]


def test_neither_mmdet_nor_mmseg_is_imported():
    code = (
        'import sys; from xcit_mm.base.environment import require_framework; '
        "require_framework('mmengine'); from mmengine.registry import DATASETS; "
        "assert DATASETS.get('UnlabeledWindows') and DATASETS.get('UnlabeledImages'); "
        "assert not {'mmdet', 'mmseg', 'rasterio'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
