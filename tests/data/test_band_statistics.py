"""The mean and the deviation of each band, against NumPy over all pixels."""

import json
from pathlib import Path

import numpy as np
import pytest
import tifffile
from helpers.in_process import call_tool
from PIL import Image

from xcit_mm import UserError
from xcit_mm.config.load import load_config
from xcit_mm.data.audit.band_statistics import Moments, band_statistics

SIZES = (37, 52), (60, 41), (5, 8)
CLASSES = ('a', 'b')


@pytest.mark.parametrize('cuts', [(1,), (0, 700, 701, 900)])
def test_moments_of_parts_are_added(cuts):
    pixels = np.random.default_rng(0).normal(1e6, (1, 3, 1e3), (1000, 3))
    total = Moments.of(pixels[:0])
    for part in np.split(pixels, cuts):
        total += Moments.of(part)
    assert total.count == 1000
    assert np.allclose(total.mean, pixels.mean(axis=0), rtol=1e-15)
    assert np.allclose(total.squares / 1000, pixels.var(axis=0), rtol=1e-9)


def images(root: Path, kind: str, bands: int = 3) -> list[np.ndarray]:
    """Write images with labels, and return their pixels as RGB or bands."""
    random, written = np.random.default_rng(0), []
    (root / 'images').mkdir(exist_ok=True)
    (root / 'labels').mkdir(exist_ok=True)
    for number, size in enumerate(SIZES):
        pixels = random.integers(0, 200, (*size, bands)) + np.arange(bands)
        pixels = pixels.astype(np.uint16 if bands > 3 else np.uint8)
        name = root / f'images/{number}.{kind}'
        if kind == 'png':
            Image.fromarray(pixels).save(name)
        else:
            tifffile.imwrite(name, pixels, tile=(16, 16), planarconfig='contig')
        if kind == 'tif':  # otherwise, they are missing
            labels = np.zeros(size, np.uint8)
            tifffile.imwrite(root / f'labels/{number}.tif', labels, tile=(16, 16))
        written.append(pixels)
    return written


def config(root: Path, loader: dict, swaps: bool = True, **dataset) -> Path:
    data = dict(type='BaseSegDataset', data_root=str(root), metainfo=dict(classes=CLASSES))
    data |= dict(data_prefix=dict(img_path='images', seg_map_path='labels'), img_suffix='.png')
    data |= dict(pipeline=[loader], reduce_zero_label=False) | dataset
    text = [
        f'train_dataloader = dict(dataset={data!r})',
        f'model = dict(data_preprocessor=dict(bgr_to_rgb={swaps}))',
        "default_scope = 'mmseg'",
    ]
    (root / 'config.py').write_text('\n'.join(text))
    return root / 'config.py'


LOADERS = {
    'png': (dict(type='LoadImage'), {}),
    'tif': (dict(type='OpenImage'), dict(img_suffix='.tif')),
    'windows': (
        dict(type='ReadWindow'),
        dict(
            type='SceneWindows',
            img_suffix='.tif',
            window=16,
            data_prefix=dict(img='images', labels='labels'),
        ),
    ),
}


@pytest.mark.parametrize('swaps', [True, False], ids=['RGB', 'BGR'])
@pytest.mark.parametrize('name', LOADERS)
def test_all_pixels_count_equally_in_the_order_of_the_channels_of_the_model(tmp_path, name, swaps):
    loader, dataset = LOADERS[name]
    written = images(tmp_path, 'png' if name == 'png' else 'tif')
    path = config(tmp_path, loader, swaps, **dataset)
    found = band_statistics(load_config(path), workers=1)
    pixels = np.concatenate([image.reshape(-1, 3) for image in written]).astype(float)
    pixels = pixels if swaps else pixels[:, ::-1]
    assert np.allclose(found.mean, pixels.mean(axis=0), rtol=1e-12)
    assert np.allclose(found.std, pixels.std(axis=0), rtol=1e-12)
    assert (found.pixels, found.images, found.left_out) == (len(pixels), len(SIZES), [])


@pytest.mark.parametrize('name', ['LoadMultiband', 'OpenImage'])
def test_bands_and_a_file_that_cannot_be_read(tmp_path, monkeypatch, capfd, name):
    written = images(tmp_path, 'tif', bands=5)
    bands = dict(channels=5)
    loader = dict(type=name, **(bands if name == 'LoadMultiband' else dict(bands=bands)))
    path = config(tmp_path, loader, img_suffix='.tif')
    (tmp_path / 'images/1.tif').write_bytes(b'II*\0')
    arguments = path, '--statistics', '--workers', 1, '--out', tmp_path / 'out.json'
    code, printed, _ = call_tool(monkeypatch, capfd, 'check_dataset.py', *arguments)
    assert code == 0
    out = json.loads((tmp_path / 'out.json').read_text())
    pixels = np.concatenate([written[i].reshape(-1, 5) for i in (0, 2)]).astype(float)
    assert np.allclose(out['mean'], pixels.mean(axis=0), rtol=1e-12)
    assert np.allclose(out['std'], pixels.std(axis=0), rtol=1e-12)
    assert (out['pixels'], out['images'], len(out['left_out'])) == (len(pixels), 2, 1)
    lines = printed.splitlines()
    values = {}
    exec('\n'.join(lines[:4]), {}, values)
    assert np.allclose(values['model']['data_preprocessor']['std'], out['std'], rtol=1e-5)
    assert lines[4] == f'Of {len(pixels)} pixels with data in 2 images.'
    assert lines[5].startswith(f'1 images are left out, such as {tmp_path}/images/1.tif: ')


def test_data_without_pixels_is_refused(tmp_path):
    images(tmp_path, 'png')
    for path in (tmp_path / 'images').iterdir():
        path.write_bytes(b'')
    path = config(tmp_path, dict(type='LoadImage'))
    message = r'no image of the training data has pixels with data; the first: .*: it is empty'
    with pytest.raises(UserError, match=message):
        band_statistics(load_config(path), workers=1)
