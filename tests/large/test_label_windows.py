"""Labels that are read by windows, against mmseg's transform, and labels that are refused."""

import os
import pickle
import struct
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import rasterio
import tifffile
from mmseg.datasets.transforms import LoadAnnotations
from PIL import Image

from xcit_mm import UserError
from xcit_mm.base.geometry import Window, whole
from xcit_mm.data.datasets.labels import LabelRule
from xcit_mm.data.transforms.decode import BadImageError, LoadImage
from xcit_mm.data.transforms.label_images import LoadLabels
from xcit_mm.large.files import image_source
from xcit_mm.large.files.arrays import Array
from xcit_mm.large.files.rasters import Raster
from xcit_mm.large.files.symmetries import Symmetry
from xcit_mm.large.labels.label_windows import open_labels
from xcit_mm.predict.write.geotiff import write_tiff

WINDOW = Window(slice(3, 28), slice(12, 41))
IMAGE = Array(np.zeros((45, 64, 3), np.uint8), 'a.tif')
QUARTER_TURN = Symmetry(is_transposed=True, flips_rows=True)


@pytest.fixture(scope='module')
def labels() -> np.ndarray:
    """Labels 0 to 4, and pixels that are ignored."""
    labels = np.random.default_rng(0).integers(0, 5, (45, 64), np.uint8)
    labels[:9, 5:30] = 255
    return labels


def write_strips(path: Path, labels: np.ndarray) -> None:
    height, width = labels.shape
    options = dict(height=height, width=width, count=1, dtype=labels.dtype, blockysize=4)
    with rasterio.open(path, 'w', 'GTiff', **options) as file:
        file.write(labels, 1)


def with_palette(labels: np.ndarray) -> Image.Image:
    image = Image.fromarray(labels)
    image.putpalette(np.arange(768, dtype=np.uint16).astype(np.uint8).tobytes())
    return image


WRITERS = {
    'predicted.tif': lambda path, labels: write_tiff(path, labels, {}, [(9, 9, 9)] * 5),
    'strips.tif': write_strips,
    'wide.tif': lambda path, labels: write_tiff(path, labels.astype(np.uint16), {}),
    'plain.png': lambda path, labels: Image.fromarray(labels).save(path),
    'palette.png': lambda path, labels: with_palette(labels).save(path),
    'wide.png': lambda path, labels: Image.fromarray(labels.astype(np.uint16)).save(path),
    'array.npy': np.save,
    'signed.npy': lambda path, labels: np.save(path, labels.astype('>i4')),
}
RULES = {
    'plain': (False, None),
    'zero is ignored': (True, None),
    'other classes': (False, {0: 255, 1: 2, 2: 1, 3: 0, 4: 255}),
    'both': (True, {0: 1, 1: 255, 2: 0, 3: 2}),
}


@pytest.mark.parametrize('rule', RULES)
@pytest.mark.parametrize('name', WRITERS)
def test_labels_equal_those_of_mmseg(name, rule, labels, tmp_path, monkeypatch):
    monkeypatch.setattr(image_source, 'TILE', (16, 32))  # which the pixels are counted in
    WRITERS[name](tmp_path / name, labels)
    reduce_zero_label, label_map = RULES[rule]
    Image.fromarray(labels).save(tmp_path / 'reference.png')
    reference = dict(seg_map_path=tmp_path / 'reference.png', label_map=label_map, seg_fields=[])
    reference['reduce_zero_label'] = reduce_zero_label
    expected = LoadAnnotations()(reference)['gt_seg_map']

    windows = open_labels(str(tmp_path / name), IMAGE, *RULES[rule])
    assert windows.shape == (45, 64) and windows.name == str(tmp_path / name)
    assert np.array_equal(windows.read(WINDOW), expected[tuple(WINDOW)])
    assert np.array_equal(windows.counts[:256], np.bincount(expected.ravel(), minlength=256))
    assert windows.counts.sum() == labels.size
    assert windows.labeled == (expected != 255).sum()
    turned = windows.turned(QUARTER_TURN)
    assert turned.shape == (64, 45)
    assert np.array_equal(turned.read(WINDOW), np.rot90(expected)[tuple(WINDOW)])


@pytest.mark.parametrize('rule', RULES)
@pytest.mark.parametrize('name', ['strips.tif', 'signed.npy'])
def test_labels_are_ignored_where_the_image_has_no_data(name, rule, labels, tmp_path, monkeypatch):
    monkeypatch.setattr(image_source, 'TILE', (16, 32))
    WRITERS[name](tmp_path / name, labels)
    complete = open_labels(str(tmp_path / name), IMAGE, *RULES[rule])
    pixels = np.random.default_rng(1).random((45, 64, 2), np.float32)
    pixels[20:, :30], pixels[5, 60] = np.nan, np.nan
    has_data = ~np.isnan(pixels[..., 0])
    expected = np.where(has_data, complete.read(whole((45, 64))), 255)
    windows = open_labels(str(tmp_path / name), Array(pixels, 'a.tif'), *RULES[rule])
    for read in (windows, pickle.loads(pickle.dumps(windows))):
        assert np.array_equal(read.read(WINDOW), expected[tuple(WINDOW)])
    assert np.array_equal(windows.counts[:256], np.bincount(expected.ravel(), minlength=256))
    assert windows.counts.sum() == labels.size
    assert windows.labeled == (expected != 255).sum() < complete.labeled
    turned = windows.turned(QUARTER_TURN)
    assert np.array_equal(turned.read(WINDOW), np.rot90(expected)[tuple(WINDOW)])
    alone = windows.of_image(None)
    assert np.array_equal(alone.read(WINDOW), complete.read(WINDOW))
    assert np.array_equal(alone.of_image(Array(pixels, 'a')).read(WINDOW), expected[tuple(WINDOW)])


def test_a_label_of_no_class_is_named_as_in_the_file(labels, tmp_path):
    np.save(tmp_path / 'a.npy', np.where(labels == 3, 0, labels))
    windows = open_labels(str(tmp_path / 'a.npy'), IMAGE, reduce_zero_label=True)
    windows.require_classes(LabelRule(num_classes=5, ignore_index=255))
    sentence = r'a\.npy: the label 4 is outside 1\.\.3, the 3 classes of the config; 255 is ign'
    with pytest.raises(UserError, match=sentence):
        windows.require_classes(LabelRule(num_classes=3, ignore_index=255))


def test_labels_of_another_size_are_refused(labels, tmp_path):
    path = tmp_path / 'a.png'
    Image.fromarray(labels[:, :60]).save(path)
    sentence = f'size of its labels: a.tif has 64x45 pixels, but {path} has 60x45$'
    with pytest.raises(BadImageError, match=sentence):
        open_labels(str(path), IMAGE)


def test_a_header_that_claims_a_huge_image_is_not_decoded(labels, tmp_path):
    Image.fromarray(labels).save(tmp_path / 'a.png')
    content = bytearray((tmp_path / 'a.png').read_bytes())
    content[16:24] = (2**20).to_bytes(4, 'big') * 2  # width and height
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, 'big')
    (tmp_path / 'a.png').write_bytes(content)
    with pytest.raises(UserError, match=r'a\.png cannot be opened .*libpng'):
        open_labels(str(tmp_path / 'a.png'), IMAGE)


def colored(labels: np.ndarray) -> np.ndarray:
    return labels[..., None].repeat(3, axis=-1)


REFUSED = {
    'colors.png': (
        lambda path, labels: Image.fromarray(colored(labels)).save(path),
        UserError,
        r'colors\.png: the labels have the shape \(45, 64, 3\), like a color image: write the',
    ),
    'shares.npy': (
        lambda path, labels: np.save(path, labels / 255),
        UserError,
        r'shares\.npy: the labels have the type float64: write the class number of each pixel',
    ),
    'negative.npy': (
        lambda path, labels: np.save(path, labels.astype(int) - 1),
        UserError,
        r'negative\.npy: the label -1 is outside 0\.\.65535: write the class number',
    ),
}


@pytest.mark.parametrize('name', REFUSED)
def test_files_that_hold_no_labels_are_refused(name, labels, tmp_path):
    write, error, sentence = REFUSED[name]
    write(tmp_path / name, labels)
    with pytest.raises(error, match=sentence):
        open_labels(str(tmp_path / name), IMAGE)


def test_a_truncated_file_is_refused(labels, tmp_path):
    name = 'plain.png'
    WRITERS[name](tmp_path / name, labels)
    os.truncate(tmp_path / name, (tmp_path / name).stat().st_size - 300)
    with pytest.raises(
        UserError, match=r'rows 0 to 45 and columns 0 to 64 cannot be read .*: copy or'
    ):
        open_labels(str(tmp_path / name), IMAGE)


def png(labels: np.ndarray, bits: int, kind: int) -> bytes:
    """Return a PNG file of gray values (kind 0) or with a palette (3)."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack('>I', len(content))
            + name
            + content
            + zlib.crc32(name + content).to_bytes(4, 'big')
        )

    def packed(row: np.ndarray) -> bytes:
        digits = (row[:, None] >> np.arange(bits)[::-1]) & 1
        return b'\0' + np.packbits(digits.astype(bool)).tobytes()

    rows = b''.join(map(packed, labels))
    header = struct.pack('>IIBBBBB', *labels.shape[::-1], bits, kind, 0, 0, 0)
    palette = chunk(b'PLTE', bytes(3 * 2**bits)) if kind else b''
    content = chunk(b'IHDR', header) + palette
    pixels = chunk(b'IDAT', zlib.compress(rows))
    return b'\x89PNG\r\n\x1a\n' + content + pixels + chunk(b'IEND', b'')


def write_gdal(path: Path, labels: np.ndarray, colors: dict | None = None, **options) -> None:
    height, width = labels.shape
    options = dict(height=height, width=width, count=1, dtype=labels.dtype) | options
    with rasterio.open(path, 'w', 'GTiff', **options) as file:
        file.write(labels, 1)
        if colors:
            file.write_colormap(1, colors)


def write_turned(path: Path, labels: np.ndarray) -> None:
    stored = np.rot90(labels)  # which orientation 6 turns back, clockwise
    tifffile.imwrite(path, stored, extratags=[(274, 'H', 1, 6, True)])


COLORS = {i: (255 - 37 * i % 256, 91 * i % 256, 7, 255) for i in range(16)}
STORED = {  # the bits of the labels, and the writer
    **{f'{b} bits.tif': (b, partial(write_gdal, nbits=b)) for b in (1, 2, 4)},
    **{
        f'white is 0, {b} bits.tif': (b, partial(write_gdal, nbits=b, photometric='MINISWHITE'))
        for b in (1, 4)
    },
    'white is 0.tif': (4, partial(write_gdal, photometric='MINISWHITE')),
    'palette.tif': (4, partial(write_gdal, colors=COLORS)),
    'palette of 4 bits.tif': (4, partial(write_gdal, colors=COLORS, nbits=4)),
    'compressed.tif': (4, partial(write_gdal, compress='LERC')),
    '32 bits.tif': (4, lambda path, labels: write_gdal(path, labels.astype(np.int32))),
    'float.tif': (4, lambda path, labels: write_gdal(path, labels.astype(np.float32))),
    'bool.tif': (1, lambda path, labels: tifffile.imwrite(path, labels.astype(bool))),
    'turned.tif': (4, write_turned),
    **{
        f'{b} bits.png': (b, lambda path, labels, b=b: path.write_bytes(png(labels, b, 0)))
        for b in (1, 2, 4)
    },
    'palette.png': (4, lambda path, labels: path.write_bytes(png(labels, 4, 3))),
    'palette.bmp': (4, lambda path, labels: with_palette(labels).save(path)),
}


@pytest.mark.parametrize('name', STORED)
def test_all_paths_read_the_numbers_that_were_written(name, tmp_path):
    bits, write = STORED[name]
    labels = np.random.default_rng(0).integers(0, 2**bits, (45, 64), np.uint8)
    write(tmp_path / name, labels)
    results = dict(seg_map_path=str(tmp_path / name), reduce_zero_label=False)
    assert np.array_equal(LoadLabels()(dict(results))['gt_seg_map'], labels)
    assert np.array_equal(open_labels(str(tmp_path / name), IMAGE).read(whole((45, 64))), labels)
    LoadImage()(results | dict(img=np.zeros((45, 64, 3), np.uint8)))  # of the same size


@pytest.mark.parametrize('rule', RULES)
def test_whole_labels_equal_those_of_mmseg(rule, labels, tmp_path):
    path = str(tmp_path / 'a.png')
    Image.fromarray(labels).save(path)
    results = dict(seg_map_path=path, seg_fields=[])
    results['reduce_zero_label'], results['label_map'] = RULES[rule]
    ours, theirs = (load()(results | dict(seg_fields=[])) for load in (LoadLabels, LoadAnnotations))
    assert np.array_equal(ours['gt_seg_map'], theirs['gt_seg_map'])
    assert ours['gt_seg_map'].dtype == np.uint8 and ours['seg_fields'] == ['gt_seg_map']
    with pytest.raises(UserError, match='but the dataset has False: write the same value in both'):
        LoadLabels(reduce_zero_label=True)(dict(seg_map_path=path, reduce_zero_label=False))


def test_labels_that_change_in_a_step_are_refused(labels, tmp_path):
    np.save(tmp_path / 'a.npy', labels)
    windows = open_labels(str(tmp_path / 'a.npy'), IMAGE).turned(QUARTER_TURN)
    windows.require_unchanged()
    os.utime(tmp_path / 'a.npy', (1, 1))
    with pytest.raises(UserError, match=r'a\.npy has changed while it was read'):
        windows.require_unchanged()


def test_more_classes_than_8_bits_have(tmp_path):
    labels = np.arange(45 * 64, dtype=np.uint16).reshape(45, 64)
    write_tiff(tmp_path / 'a.tif', labels, {})
    windows = open_labels(str(tmp_path / 'a.tif'), IMAGE)
    assert np.array_equal(windows.read(WINDOW), labels[tuple(WINDOW)])
    assert (windows.counts[: labels.size] == 1).all()


@pytest.mark.parametrize(
    ('bits', 'kind'), [(1, 0), (2, 0), (4, 0), (8, 0), (16, 0), (1, 3), (2, 3), (4, 3), (8, 3)]
)
def test_windows_of_png_files_have_the_numbers_that_are_stored(bits, kind, tmp_path):
    labels = np.random.default_rng(0).integers(0, 2**bits, (45, 64))
    (tmp_path / 'a.png').write_bytes(png(labels, bits, kind))
    windows = open_labels(str(tmp_path / 'a.png'), IMAGE)
    assert isinstance(windows._source, Raster) and windows.max_rows == 1100
    assert np.array_equal(windows.read(WINDOW), labels[tuple(WINDOW)])
    assert np.array_equal(pickle.loads(pickle.dumps(windows)).read(WINDOW), windows.read(WINDOW))
