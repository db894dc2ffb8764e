"""Arrays of Zarr and images of OME-Zarr, against the arrays that were written."""

import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from xcit_mm import UserError
from xcit_mm.base.geometry import Window, whole
from xcit_mm.large.files.image_source import ImageSource
from xcit_mm.large.files.open_image import image_size, open_image
from xcit_mm.predict.sources import read_image

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason='Zarr 3 needs Python 3.11')
PIXELS = np.random.default_rng(0).integers(1, 255, (75, 101, 5), np.uint8)
WINDOW = Window(slice(13, 60), slice(31, 98))
CHANNELS_FIRST = np.moveaxis(PIXELS, -1, 0)


def write(path: Path, values: np.ndarray = PIXELS, **options) -> Path:
    import zarr

    options = dict(chunks=tuple(min(32, n) for n in values.shape), zarr_format=3) | options
    array = zarr.create_array(path, shape=values.shape, dtype=values.dtype, **options)
    array[:] = values
    return path


def write_ome(path: Path, version: str = '0.5', changes=(), axes='cyx', unit='micrometer') -> Path:
    """Write an image with two levels."""
    zarr_format = 3 if version == '0.5' else 2
    datasets = []
    values = CHANNELS_FIRST.reshape([1] * (len(axes) - 3) + [*CHANNELS_FIRST.shape])
    for level in (0, 1):
        scale = [1] * (len(axes) - 2) + [0.25 * 2**level, 0.5 * 2**level]
        scale = dict(type='scale', scale=scale)
        datasets.append(dict(path=f's{level}', coordinateTransformations=[scale]))
        write(path / f's{level}', values[..., :: 2**level, :: 2**level], zarr_format=zarr_format)
    kinds = dict(t='time', c='channel')
    axes = [dict(name=a, type=kinds[a]) if a in kinds else dict(name=a, unit=unit) for a in axes]
    attributes = dict(multiscales=[dict(axes=axes, datasets=datasets, version=version)])
    if version == '0.5':
        text = dict(zarr_format=3, node_type='group', attributes=dict(ome=attributes))
        (path / 'zarr.json').write_text(json.dumps(text))
    else:
        (path / '.zgroup').write_text('{"zarr_format": 2}')
        (path / '.zattrs').write_text(json.dumps(attributes))
    return path


def same(source: ImageSource, expected: np.ndarray = PIXELS) -> bool:
    again = pickle.loads(pickle.dumps(source))
    assert again.identity() == source.identity() and again.content() == source.content()
    pixels = again.read(WINDOW)
    assert np.array_equal(pixels, source.read(WINDOW)) and source.valid(WINDOW) is None
    return np.array_equal(pixels, expected[tuple(WINDOW)])


NAMES = dict(dimension_names=['band', 'Y', 'X'])
ARRAYS = {
    'last': (PIXELS, {}, PIXELS),
    'first': (CHANNELS_FIRST, {}, PIXELS),
    'flat': (PIXELS[..., 0], {}, PIXELS[..., :1]),
    'one_more': (PIXELS[None, None], {}, PIXELS),
    'old': (PIXELS, dict(zarr_format=2), PIXELS),
    'old_folders': (
        PIXELS,
        dict(zarr_format=2, chunk_key_encoding=dict(name='v2', separator='/')),
        PIXELS,
    ),
    'named': (PIXELS[:, :4].transpose(2, 0, 1), NAMES, None),  # the last axis is the shortest one
    'turned': (PIXELS.transpose(1, 2, 0), dict(dimension_names=['x', 'c', 'y']), PIXELS),
    'sharded': (PIXELS, dict(shards=(64, 64, 5), chunks=(32, 32, 5)), PIXELS),
    'xarray': (
        PIXELS,
        dict(zarr_format=2, attributes=dict(_ARRAY_DIMENSIONS=['y', 'x', 'band'])),
        PIXELS,
    ),
    'wide': (PIXELS.astype(np.uint16) * 257, {}, PIXELS.astype(np.uint16) * 257),
}


@pytest.mark.parametrize('name', ARRAYS)
def test_windows_of_arrays(name, tmp_path):
    values, options, expected = ARRAYS[name]
    path = write(tmp_path / 'a.zarr', values, **options)
    source = open_image(path, str)
    if expected is None:
        assert source.shape == (75, 4, 5)
        assert np.array_equal(source.read(whole((75, 4))), PIXELS[:, :4])
        return
    assert source.shape == expected.shape and source.dtype == expected.dtype
    assert same(source, expected) and same(open_image(path, str, 3), expected[..., :3])
    assert image_size(str(path)) == (75, 101)
    assert source.georeference == {}


@pytest.mark.parametrize('version', ['0.4', '0.5'])
@pytest.mark.parametrize('axes', ['cyx', 'tczyx'])
def test_levels_and_pixel_sizes_of_ome_zarr(version, axes, tmp_path):
    if axes == 'tczyx':
        path = tmp_path / 'a.zarr'
        write_ome(path, version, axes='tzcyx')
    else:
        path = write_ome(tmp_path / 'a.zarr', version)
    source = open_image(path, str)
    assert same(source)
    assert source.levels == ((75, 101), (38, 51)) and tuple(source.pixel_size) == (0.25, 0.5, 'µm')
    reduced = open_image(path, str, level=1)
    assert np.array_equal(reduced.read(whole((38, 51))), PIXELS[::2, ::2])
    assert reduced.georeference['transform'] * (51, 38) == pytest.approx((101, 75))
    assert open_image(path, str, resolution=1.0).shape == (19, 51, 5)
    assert open_image(path / 's1', str).shape == (38, 51, 5)


def test_units_of_length(tmp_path):
    path = write_ome(tmp_path / 'a.zarr', unit='millimeter')
    assert open_image(path, str).pixel_size.width == 500
    path = write_ome(tmp_path / 'b.zarr', unit=None)
    with pytest.raises(UserError, match='does not contain the size of its pixels'):
        open_image(path, str, resolution=1.0)


@pytest.mark.parametrize('zarr_format', [2, 3])
def test_a_missing_chunk_is_an_error_unless_its_fill_value_has_no_data(tmp_path, zarr_format):
    path = write(tmp_path / 'a.zarr', zarr_format=zarr_format, fill_value=7)
    source = open_image(path, str)
    chunk = 'c/1/2/0' if zarr_format == 3 else '1.2.0'
    (path / chunk).unlink()
    assert source.read(Window(slice(0, 32), slice(0, 101))).any()
    sentence = f'{path}: the chunk {chunk} is missing: copy it again, or name --nodata 7 if it has'
    for nodata in (None, 8):
        source = open_image(path, str, nodata=nodata)
        with pytest.raises(UserError) as error:
            source.read(WINDOW)
        assert str(error.value) == f'{sentence} no data'
    valid = open_image(path, str, nodata=7).valid(whole((75, 101)))
    assert not valid[32:64, 64:96].any() and valid.sum() == 75 * 101 - 32 * 32


def test_the_state_of_an_image_is_the_state_of_its_files(tmp_path):
    path = write_ome(tmp_path / 'a.zarr')
    source = open_image(path, str)
    source.require_unchanged()
    state = source.identity()
    chunk = path / 's0/c/0/0/0'
    data = bytearray(chunk.read_bytes())
    data[-1] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(UserError, match=r'a.zarr has changed while it was read'):
        source.require_unchanged()
    assert open_image(path, str).identity() != state
    chunk.unlink()
    with pytest.raises(UserError, match=r'a.zarr has changed while it was read'):
        source.require_unchanged()


def change_json(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def link(path: Path, target: Path) -> None:
    path.rename(target)
    path.symlink_to(target)


class Payload:
    """What runs code when it is unpickled."""

    def __reduce__(self) -> tuple:
        return pytest.fail, ('code was run',)


def pickled(path: Path, **metadata) -> None:
    write(path, zarr_format=2)
    change_json(path / '.zarray', **metadata)
    for chunk in path.glob('[0-9]*'):
        chunk.write_bytes(pickle.dumps(Payload()))


PICKLE, TEXTS = dict(id='pickle'), dict(id='vlen-utf8')
HOSTILE = {
    'pickle': (lambda p: pickled(p, filters=[PICKLE]), 'cannot be opened ('),
    'texts': (
        lambda p: pickled(p, filters=[TEXTS, PICKLE], compressor=None, dtype='|O', fill_value=''),
        'does not hold plain numbers',
    ),
    'outside': (
        lambda p: replace_text(write_ome(p) / 'zarr.json', '"s1"', '"../b.zarr"'),
        "The path '../b.zarr' is invalid",
    ),
    'linked_chunk': (lambda p: link(write(p) / 'c/0/0/0', p.parent / 'x'), 'c/0/0/0 is a link, a'),
    'group': (
        lambda p: write(p / 'b') and (p / '.zgroup').write_text('{"zarr_format": 2}'),
        'without an image of OME-Zarr: name an array in it',
    ),
    'axes': (
        lambda p: write(p, dimension_names=[*'abc']),
        "the axes ('a', 'b', 'c'), but an image",
    ),
    'chunks': (
        lambda p: change_json(
            write(p, zarr_format=2) / '.zarray', shape=[2**15] * 2, chunks=[2**15] * 2
        ),
        'but at most 268435456 are possible: write it with smaller blocks',
    ),
    'none': (lambda p: None, 'does not exist'),
}


@pytest.mark.parametrize('name', HOSTILE)
def test_hostile_and_unusable_folders_are_refused(name, tmp_path):
    path = tmp_path / 'a.zarr'
    HOSTILE[name][0](path)
    with pytest.raises(UserError) as error:
        open_image(path, read_image)
    sentence = str(error.value)
    assert HOSTILE[name][1].format(path) in sentence and sentence.startswith(f'{path}')


def test_a_missing_shard_is_an_error(tmp_path):
    path = write(tmp_path / 'a.zarr', shards=(64, 64, 5), chunks=(32, 32, 5))
    (path / 'c/1/1/0').unlink()
    with pytest.raises(UserError, match='the chunk c/1/1/0 is missing'):
        open_image(path, str).read(whole((75, 101)))


def test_a_damaged_chunk_is_an_error(tmp_path):
    path = write(tmp_path / 'a.zarr')
    (path / 'c/0/0/0').write_bytes(b'damaged')
    with pytest.raises(UserError, match='copy or repair the file'):
        open_image(path, str).read(whole((75, 101)))
