"""OME-TIFF files of several pages, levels and files, against the arrays that were written."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import tifffile

from xcit_mm import UserError
from xcit_mm.base.geometry import Window, whole
from xcit_mm.large.files.image_source import ImageSource
from xcit_mm.large.files.open_image import image_size, open_image

PIXELS = np.random.default_rng(0).integers(1, 255, (75, 101, 5), np.uint8)
WINDOW = Window(slice(13, 60), slice(31, 98))
CHANNELS = np.moveaxis(PIXELS, -1, 0)
HEADER = '<?xml version="1.0" encoding="UTF-8"?>'
SCALE = dict(PhysicalSizeX=0.5, PhysicalSizeY=0.25)


def write(path: Path, values: np.ndarray = CHANNELS, axes: str = 'CYX', levels: int = 1, **options):
    """Write an image with levels, each half as large as the one before it."""
    metadata = dict(axes=axes) | SCALE | options.pop('metadata', {})
    options = dict(tile=(32, 32), photometric='minisblack') | options
    with tifffile.TiffWriter(path, ome=True) as file:
        file.write(values, subifds=levels - 1, metadata=metadata, **options)
        for level in range(1, levels):
            step = 2**level
            reduced = (
                values[..., ::step, ::step, :] if axes[-1] == 'S' else values[..., ::step, ::step]
            )
            file.write(reduced, subfiletype=1, **options)
    return path


def same(source: ImageSource, expected: np.ndarray) -> bool:
    again = pickle.loads(pickle.dumps(source))
    assert again.identity() == source.identity()
    pixels = again.read(WINDOW)
    assert np.array_equal(pixels, source.read(WINDOW))
    return np.array_equal(pixels, expected[tuple(WINDOW)])


KINDS = {
    'channels': (CHANNELS, 'CYX', {}, PIXELS),
    'gray': (PIXELS[..., 0], 'YX', {}, PIXELS[..., :1]),
    'rgb': (PIXELS[..., :3], 'YXS', dict(photometric='rgb'), PIXELS[..., :3]),
    'rgb_pages': (
        np.stack([PIXELS[..., :3], PIXELS[..., 2:]]),
        'CYXS',
        dict(photometric='rgb'),
        PIXELS[..., [0, 1, 2, 2, 3, 4]],
    ),
    'all_axes': (CHANNELS[None, :, None], 'TCZYX', {}, PIXELS),
    'wide': (CHANNELS.astype('u2') * 257, 'CYX', {}, PIXELS.astype('u2') * 257),
    'float': (CHANNELS.astype('f4') / 7, 'CYX', {}, PIXELS.astype('f4') / 7),
    'big': (CHANNELS, 'CYX', dict(compression='zlib', predictor=True), PIXELS),
    'strips': (CHANNELS, 'CYX', dict(tile=None, rowsperstrip=7), PIXELS),
}


@pytest.mark.parametrize('kind', KINDS)
def test_windows_of_each_kind(kind, tmp_path):
    values, axes, options, expected = KINDS[kind]
    path = write(tmp_path / 'a.ome.tif', values, axes, **options)
    source = open_image(path, str)
    assert source.shape == expected.shape and source.dtype == expected.dtype
    assert same(source, expected)
    assert source.valid(WINDOW) is None and source.has_gaps == (kind == 'float')
    assert tuple(source.pixel_size) == (0.25, 0.5, 'µm')
    if expected.shape[2] >= 3:
        assert same(open_image(path, str, 3), expected[..., :3])
    assert image_size(str(path)) == (75, 101)


@pytest.mark.parametrize('kind', ['channels', 'rgb'])
def test_levels(kind, tmp_path):
    values, axes, options, expected = KINDS[kind]
    path = write(tmp_path / 'a.ome.tiff', values, axes, levels=3, **options)
    for level in range(3):
        source = open_image(path, str, level=level)
        step = 2**level
        assert source.levels == ((75, 101), (38, 51), (19, 26)) and source.level == level
        size = source.levels[level]
        assert np.array_equal(source.read(whole(size)), expected[::step, ::step])
        assert source.pixel_size.width == pytest.approx(0.5 * 101 / size[1])
    assert source.georeference['transform'] * (26, 19) == pytest.approx((101, 75))
    assert open_image(path, str, resolution=1.1).level == 1


def test_the_no_data_value_of_the_image_is_that_of_its_levels(tmp_path):
    tag = [(42113, 's', 0, '7', True)]  # GDAL_NODATA
    with tifffile.TiffWriter(tmp_path / 'a.ome.tif', ome=True) as file:
        file.write(CHANNELS, subifds=1, metadata=dict(axes='CYX'), extratags=tag, tile=(32, 32))
        file.write(np.full((5, 38, 51), 7, np.uint8), subfiletype=1, tile=(32, 32))
    source = open_image(tmp_path / 'a.ome.tif', str, level=1)
    assert source.nodata == 7 and not source.valid(whole((38, 51))).any()


def test_units_bits_and_missing_data(tmp_path):
    metadata = dict(PhysicalSizeXUnit='nm', PhysicalSizeYUnit='nm', SignificantBits=12)
    path = write(tmp_path / 'a.ome.tif', CHANNELS.astype('u2'), metadata=metadata)
    source = open_image(path, str, nodata=7)
    assert source.pixel_size.width == 0.0005 and source.max_value == 4095
    values = CHANNELS.copy()
    values[:, :20, 40:50] = 7
    source = open_image(write(path, values), str, nodata=7)
    valid = (np.moveaxis(values, 0, -1) != 7).any(axis=2)
    assert np.array_equal(source.valid(WINDOW), valid[tuple(WINDOW)])


def several_files(folder: Path) -> list[Path]:
    """Write a channel to each of two files, with metadata that name both."""
    paths = [folder / f'{name}.ome.tif' for name in 'ab']
    data = ''.join(
        f'<TiffData FirstC="{i}" IFD="0" PlaneCount="1"><UUID FileName="{path.name}">urn:uuid:'
        f'{i}</UUID></TiffData>'
        for i, path in enumerate(paths)
    )
    for number, path in enumerate(paths):
        xml = (
            f'{HEADER}<OME xmlns="http://www.openmicroscopy.org/'
            f'Schemas/OME/2016-06" UUID="urn:uuid:{number}"><Image ID="Image:0"><Pixels '
            'ID="Pixels:0" DimensionOrder="XYCZT" Type="uint8" SizeX="101" SizeY="75" SizeC="2" '
            'SizeZ="1" SizeT="1"><Channel ID="Channel:0:0" SamplesPerPixel="1"/><Channel '
            f'ID="Channel:0:1" SamplesPerPixel="1"/>{data}</Pixels></Image></OME>'
        )
        options = dict(description=xml, metadata=None, photometric='minisblack')
        tifffile.imwrite(path, PIXELS[..., number], **options)
    return paths


def test_channels_in_several_files(tmp_path):
    paths = several_files(tmp_path)
    source = open_image(paths[0], str)
    assert same(source, PIXELS[..., :2])
    os.utime(paths[1], ns=(1, 1))
    with pytest.raises(UserError, match=r'a.ome.tif has changed while it was read'):
        source.require_unchanged()
    paths[1].unlink()
    with pytest.raises(UserError, match=r'a.ome.tif: a channel is missing, because a file is cut'):
        open_image(paths[0], str)


def changed(old: str, new: str):
    """Return a function that writes two files, and changes a text of the same length in one."""

    def put(path: Path) -> None:
        several_files(path.parent)
        data = path.read_bytes()
        assert data.count(old.encode()) >= 1 and len(old) == len(new)
        path.write_bytes(data.replace(old.encode(), new.encode()))

    return put


def pipe(path: Path) -> None:
    several_files(path.parent)
    path.with_name('b.ome.tif').unlink()
    os.mkfifo(path.with_name('b.ome.tif'))


def link(path: Path) -> None:
    several_files(path.parent)
    (path.parent / 'folder').mkdir()
    other = path.with_name('b.ome.tif')
    other.symlink_to(other.replace(path.parent / 'folder/b.tif'))


REFUSED = {
    'sections': (
        lambda p: write(p, CHANNELS, 'ZYX'),
        "has images along the axes {'Z': 5}, but one image is needed: copy one",
    ),
    'folder': (
        changed('"b.ome.tif"', '"../b.tiff"'),
        "names the file '../b.tiff', but its files have to be in its folder",
    ),
    'folder_beside_a_file': (
        changed(
            'UUID FileName="b.ome.tif">urn:uuid:1</UUID>',
            'UUID FileName="../b" MetadataFile="a"/>'.ljust(43),
        ),
        "names the file '../b', but its files have to be in its folder",
    ),
    'link': (link, "folder/b.tif', but its files have to be in its folder"),
    'planes': (changed('"75" SizeC="2"', '"7" SizeC="99"'), 'claims more than 9 planes'),
    'pipe': (pipe, 'Not a regular file: '),
    'entity': (
        changed(
            '<?xml version="1.0" encoding="UTF-8"?>', '<!DOCTYPE a [<!ENTITY a "a">]>'.ljust(38)
        ),
        'XML entities',
    ),
    'cut': (lambda p: write(p) and os.truncate(p, 3000), 'a.ome.tif'),
}


@pytest.mark.parametrize('name', REFUSED)
def test_hostile_and_unusable_files_are_refused(name, tmp_path, monkeypatch):
    monkeypatch.setattr('xcit_mm.large.files.ome_tiff.MAX_PLANES', 9)
    path = tmp_path / 'a.ome.tif'
    REFUSED[name][0](path)
    with pytest.raises(UserError) as error:
        source = open_image(path, str)
        source.read(whole(source.shape[:2]))
    assert REFUSED[name][1] in str(error.value)


def test_pages_of_too_many_channels_are_not_opened(tmp_path, monkeypatch):
    monkeypatch.setattr('xcit_mm.large.files.image_source.MAX_CHANNELS', 4)
    monkeypatch.setattr('xcit_mm.large.files.ome_tiff.GdalImage', pytest.fail)
    path = write(tmp_path / 'a.ome.tif')
    with pytest.raises(UserError) as error:
        open_image(path, str)
    assert str(error.value) == (
        f'{path} has 5 channels, but at most 4 can be read: copy those that the model needs to '
        'another file'
    )
