"""Heights of large images against the heights of the whole image, and the files with them."""

import json

import numpy as np
import pytest
import rasterio
import torch
from helpers import network_error, relative_error
from helpers.heights import CONFIG, build_heights
from helpers.random_weights import save_random_weights
from rasterio.transform import from_origin
from torch.nn import functional as F

from xcit_mm import load_model
from xcit_mm.apps.infer.run import infer
from xcit_mm.large.maps import segment
from xcit_mm.large.tokens.passes import Passes
from xcit_mm.predict.large.predict_large import LargeOptions
from xcit_mm.predict.large.slices import slices_of
from xcit_mm.predict.results.seams import largest_steps
from xcit_mm.predict.write.geotiff import write_tiff

PLACE = dict(crs='EPSG:32633', transform=from_origin(500000, 5400000, 0.5, 0.5))
# Heights in thousands, for which 16 bits would be too few.
OPTIONS = {'model.decode_head.mean': 2000.0, 'model.decode_head.std': 50.0}


@pytest.fixture(scope='module')
def weights(tmp_path_factory):
    return save_random_weights(CONFIG, tmp_path_factory.mktemp('weights') / 'heights.pth')


@pytest.fixture(scope='module')
def model(weights):
    return load_model(CONFIG, weights, 'cpu', OPTIONS, full_size=True)


@pytest.fixture(scope='module')
def scene(image, tmp_path_factory):
    path = tmp_path_factory.mktemp('scene') / 'scene.tif'
    options = dict(height=130, width=160, count=3, dtype='uint8', **PLACE)
    with rasterio.open(path, 'w', 'GTiff', **options) as file:
        file.write(np.moveaxis(image, -1, 0))
    return path


@pytest.mark.parametrize('positive', [False, True])
def test_streamed_heights_equal_those_of_the_whole_image(positive, monkeypatch):
    monkeypatch.setattr(segment, 'MAX_TILE', 64)
    model = build_heights(mean=-3.0, std=8.0, positive=positive)
    for size in ((161, 75), (66, 129)):
        image = torch.randn(3, *size)
        with torch.no_grad():
            expected = model.decode_head(model.extract_feat(image[None]))
            expected = F.interpolate(expected, scale_factor=4, mode='bilinear')[0, 0]
            expected = expected[: size[0], : size[1]]
        assert (expected.min() > 0) == positive
        for rows in (1, None):
            passes = Passes(model.backbone, image, rows)
            passes.run()
            made = segment.label(model, passes, size, dict(heights=torch.float32))
            heights = torch.from_numpy(made['heights'].array()[..., 0].copy())
            assert heights.dtype == torch.float32
            assert relative_error(heights, expected) <= network_error(model, torch.float32)


def test_a_large_image_has_the_heights_of_predict(model, image):
    whole_image, large = model.predict(image), model.predict_large(image)
    assert whole_image.values.dtype == large.values.dtype == np.float32
    assert whole_image.values.shape == image.shape[:2]
    assert np.abs(large.values - whole_image.values).max() <= 2000 * network_error(
        model.module, torch.float32
    )
    assert np.ptp(whole_image.values) > 20
    assert large.limits == pytest.approx(whole_image.limits)
    different = np.abs(large.draw().astype(int) - whole_image.draw())
    assert (different > 1).mean() < 0.01  # rounding, and the texts of the scale


def test_batches_and_16_bits_keep_the_heights(weights, model, image):
    first, second = model.predict_batch([image, image[:99]])
    assert np.abs(first.values - model.predict(image).values).max() < 0.01
    assert second.values.shape == (99, 160)
    narrow = load_model(CONFIG, weights, 'cpu', OPTIONS, full_size=True, dtype='bfloat16')
    for heights in (narrow.predict(image), narrow.predict_large(image)):
        error = np.abs(heights.values - first.values).mean()
        assert 0 < error < 0.1 * first.values.std()


def test_slices_keep_the_middle_of_what_they_share(model, image):
    large = model.predict_large(image, sliced=96, overlap=32, batch_size=1)
    corner = model.predict(np.ascontiguousarray(image[-96:, -96:])).values
    assert np.array_equal(large.values[-65:, -80:], corner[-65:, -80:])
    middles = [middle for _, middle in slices_of(image.shape[:2], 96, 32)]
    borders = [sorted({middle[axis].start for middle in middles} - {0}) for axis in (0, 1)]
    exact = model.predict_large(image).values
    sliced = largest_steps(large.values, exact, *borders)
    assert sliced.at_borders > 2 * sliced.inside > 0
    assert largest_steps(exact, exact, *borders) == (0, 0)


def test_a_scene_becomes_a_geotiff_of_floats(weights, model, scene, tmp_path):
    large = dict(sliced=96, overlap=32)
    done, problems, _ = infer(
        CONFIG,
        weights,
        [str(scene)],
        tmp_path,
        stream=True,
        large=LargeOptions(**large),
        options=OPTIONS,
    )
    assert (done, problems) == (1, [])
    expected = model.predict_large(scene, **large)
    with rasterio.open(tmp_path / 'heights/scene.tif') as file:
        assert file.dtypes == ('float32',) and np.isnan(file.nodata)
        assert np.array_equal(file.read(1), expected.values)
        assert file.crs.to_epsg() == 32633 and file.transform == PLACE['transform']
    (described,) = json.loads((tmp_path / 'heights.json').read_text())['images']
    assert described['heights'] == 'heights/scene.tif'
    assert (described['minimum'], described['maximum']) == pytest.approx(expected.limits)
    assert (tmp_path / described['picture']).exists()
    assert not (tmp_path / 'unfinished').exists()


def test_an_image_in_memory_becomes_a_tiff_that_gdal_reads(weights, model, image, tmp_path):
    from PIL import Image

    Image.fromarray(image).save(tmp_path / 'a.png')
    inputs, out = [str(tmp_path / 'a.png')], tmp_path / 'out'
    done, problems, _ = infer(CONFIG, weights, inputs, out, options=OPTIONS)
    assert (done, problems) == (1, [])
    with rasterio.open(out / 'heights/a.tif') as file:
        assert file.dtypes == ('float32',) and np.isnan(file.nodata)
        assert np.array_equal(file.read(1), model.predict(image).values)
    (described,) = json.loads((out / 'heights.json').read_text())['images']
    assert described['heights'] == 'heights/a.tif' and described['minimum'] > 1000


def test_nan_is_written_as_no_data(tmp_path):
    values = np.random.default_rng(0).normal(size=(700, 33)).astype(np.float32)
    values[600:] = np.nan
    write_tiff(tmp_path / 'a.tif', values, {}, nodata=np.nan)
    with rasterio.open(tmp_path / 'a.tif') as file:
        np.testing.assert_array_equal(file.read(1), values)
        assert file.read(1, masked=True).mask[600:].all()
