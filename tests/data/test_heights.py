"""Labels of heights from TIFF files of any kind, what is wrong with others, and the drawings."""

import numpy as np
import pytest
import rasterio
import tifffile
from helpers.heights import CONFIG, write_heights

from benchmarks import terrain
from xcit_mm.config.load import load_config
from xcit_mm.data.audit.audit import check_dataset
from xcit_mm.data.transforms import decode
from xcit_mm.data.transforms.decode import BadImageError
from xcit_mm.data.transforms.height_labels import LoadHeights

VALUES = np.array([[-3.5, 0, 7.25], [-9999, 12, 1000]], np.float32)


def load(path, shape=(2, 3), **options):
    return LoadHeights(**options)(dict(depth_map_path=str(path), ori_shape=shape))


def masked() -> np.ndarray:
    expected = VALUES.copy()
    expected[1, 0] = np.nan
    return expected


def test_the_no_data_value_of_the_file_becomes_nan(tmp_path):
    results = load(write_heights(tmp_path / 'a.tif', VALUES, nodata=-9999))
    assert results['gt_depth_map'].dtype == np.float32
    np.testing.assert_array_equal(results['gt_depth_map'], masked())
    assert results['seg_fields'] == ['gt_depth_map']
    assert results['seg_map_path'] == str(tmp_path / 'a.tif')


def test_nan_and_the_no_data_value_of_the_config_become_nan(tmp_path):
    path = write_heights(tmp_path / 'a.tif', VALUES)
    np.testing.assert_array_equal(load(path)['gt_depth_map'], VALUES)
    np.testing.assert_array_equal(load(path, nodata=-9999)['gt_depth_map'], masked())
    path = write_heights(tmp_path / 'b.tif', masked(), compress='deflate', predictor=3)
    np.testing.assert_array_equal(load(path)['gt_depth_map'], masked())


def test_integers_with_a_scale_a_mask_and_an_offset(tmp_path):
    path = write_heights(tmp_path / 'a.tif', np.array([[1, 2, 3], [4, 5, 6]], np.int16))
    with rasterio.open(path, 'r+') as file:
        file.scales, file.offsets = (0.5,), (100.0,)
        file.write_mask(np.array([[True, True, True], [False, True, True]]))
    expected = [[100.5, 101, 101.5], [np.nan, 102.5, 103]]
    np.testing.assert_array_equal(load(path)['gt_depth_map'], np.float32(expected))


@pytest.mark.parametrize(
    ('values', 'options', 'kind', 'detail'),
    [
        (np.zeros((3, 2)), {}, decode.LABELS_OF_OTHER_SIZE, '3x2 pixels instead of 2x3'),
        (np.full((2, 3), -1.0), dict(nodata=-1), decode.NO_LABELS, ''),
        (np.full((2, 3), np.nan), {}, decode.NO_LABELS, ''),
    ],
)
def test_labels_that_no_training_can_use(tmp_path, values, options, kind, detail):
    path = write_heights(tmp_path / 'a.tif', values, **options)
    with pytest.raises(BadImageError) as raised:
        load(path)
    assert raised.value.kind == kind
    assert raised.value.args[1].startswith(detail)


def test_files_that_are_missing_cut_or_of_another_format(tmp_path):
    with pytest.raises(BadImageError, match=decode.LABELS_MISSING):
        load(tmp_path / 'a.tif')
    whole = write_heights(tmp_path / 'a.tif', np.zeros((99, 99), np.float32)).read_bytes()
    for content in (b'', whole[: len(whole) // 2], b'P5 3 2 255\n123456'):
        (tmp_path / 'a.tif').write_bytes(content)
        with pytest.raises(BadImageError, match=decode.LABELS_UNREADABLE):
            load(tmp_path / 'a.tif', (99, 99))


def test_the_check_of_a_dataset_names_labels_that_cannot_be_used(tmp_path):
    root = tmp_path / 'heights'
    terrain.make_heights(root, terrain.HeightsSpec(4, 1))
    cfg = load_config(CONFIG, {'data_root': str(root)})
    report = check_dataset(cfg, ('train', 'val'), workers=1)
    assert report.images == dict(train=4, val=1)
    assert report.findings == report.failures == []
    write_heights(root / 'heights/training/000002.tif', np.zeros((80, 160), np.float32))
    cfg.model.decode_head.update(positive=True, loss_decode=dict(type='LabeledSiLogLoss'))
    report = check_dataset(cfg, ('train',), workers=1)
    by_file = {finding.file[-10:]: finding for finding in report.findings}
    assert by_file['000002.jpg'].kind == decode.LABELS_OF_OTHER_SIZE
    assert by_file['000001.jpg'].detail.endswith(
        'has no logarithm, which LabeledSiLogLoss needs: use LabeledL1Loss, or mark such pixels '
        'as missing'
    )
    assert report.failures[0] == 'train: 3 x heights that the loss cannot use'


def test_a_file_with_much_metadata_is_refused_before_it_is_opened(tmp_path, monkeypatch):
    monkeypatch.setattr('rasterio.io.MemoryFile.open', pytest.fail)
    item = f'<Item name="a">{"a" * 2**18}</Item>'
    tags = [(42112, 's', 0, f'<GDALMetadata>{item}</GDALMetadata>', True)]
    tifffile.imwrite(tmp_path / 'a.tif', VALUES, extratags=tags)
    with pytest.raises(BadImageError) as raised:
        load(tmp_path / 'a.tif')
    assert str(raised.value) == (
        'its label file cannot be read: it has more than 262144 bytes of metadata, too many to '
        'read: copy it with gdal_translate -nomd'
    )
