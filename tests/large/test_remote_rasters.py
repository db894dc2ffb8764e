"""Large TIFF files by address: parts are transferred, and nothing else is reached."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import rasterio
import rasterio.shutil
import tifffile
from helpers.file_server import FileServer, serving

from xcit_mm import UserError
from xcit_mm.base import http
from xcit_mm.base.geometry import Window, whole
from xcit_mm.large.files import remote_rasters
from xcit_mm.large.files.image_source import ReadOptions
from xcit_mm.large.files.open_image import image_size, open_image
from xcit_mm.large.files.rasters import Raster

WINDOW = Window(slice(333, 390), slice(417, 640))
BLOCK = 2**14
HINT = 'download it yourself and name the local file'
PARTS = 'the server does not send parts of the file (range requests), which a large image needs'


@pytest.fixture(scope='module')
def file(tmp_path_factory) -> Path:
    """A cloud-optimized GeoTIFF of about a megabyte."""
    pixels = np.random.default_rng(0).integers(1, 256, (3, 600, 700), np.uint8)
    pixels[:, :100, :90] = 0
    folder = tmp_path_factory.mktemp('remote')
    options = dict(height=600, width=700, count=3, dtype='uint8', nodata=0, crs='EPSG:32632')
    options |= dict(transform=rasterio.Affine(0.5, 0, 600_000, 0, -0.5, 5_000_000))
    with rasterio.open(folder / 'plain.tif', 'w', 'GTiff', **options) as file:
        file.write(pixels)
    rasterio.shutil.copy(
        folder / 'plain.tif', folder / 'cog.tif', 'COG', blocksize=128, compress='LZW'
    )
    return folder / 'cog.tif'


@pytest.fixture
def server(monkeypatch, file):
    monkeypatch.setattr(http, 'PAUSE', 0)
    monkeypatch.setattr(remote_rasters, 'BLOCK', BLOCK)
    with serving() as server:
        server.files['/cog.tif'] = file.read_bytes()
        server.versions['/cog.tif'] = '"1"'
        yield server


def refused(server: FileServer, path: str = '/cog.tif') -> str:
    with pytest.raises(UserError) as error:
        source = open_image(server.url(path), str)
        source.read(whole(source.shape[:2]))
    return str(error.value)


def test_windows_are_read_by_parts(server, file, monkeypatch):
    expected, url = Raster(file, ReadOptions()), server.url('/cog.tif?signature=1')
    server.files['/cog.tif?signature=1'] = server.files['/cog.tif']
    server.versions['/cog.tif?signature=1'] = '"1"'
    source = open_image(url, str)
    for image in (source, pickle.loads(pickle.dumps(source))):
        assert np.array_equal(image.read(WINDOW), expected.read(WINDOW))
    spans = [map(int, asked.removeprefix('bytes=').split('-')) for asked in server.ranges]
    assert sum(stop - start for start, stop in spans) < file.stat().st_size
    assert source.georeference == expected.georeference
    assert source.levels == expected.levels
    window = Window(slice(80, 120), slice(50, 100))
    assert np.array_equal(source.valid(window), expected.valid(window))
    monkeypatch.setattr(remote_rasters, 'KEPT_BLOCKS', 3)
    everything = whole((600, 700))
    assert np.array_equal(source.read(everything), expected.read(everything))
    assert image_size(url) == (600, 700)


def test_levels_are_read_from_the_overviews(server, file):
    source = open_image(server.url('/cog.tif'), str, level=1)
    assert np.array_equal(
        source.read(whole((300, 350))), Raster(file, ReadOptions(level=1)).read(whole((300, 350)))
    )
    assert open_image(server.url('/cog.tif'), str, resolution=1.7).shape == (176, 206, 3)


def test_the_state_of_a_file_is_its_version(server):
    url = server.url('/cog.tif')
    source = open_image(url, str)
    assert source.content() == open_image(url, str).content()
    assert source.identity() == open_image(url, str).identity()
    source.require_unchanged()
    server.versions['/cog.tif'] = '"2"'
    changed = f'{url} has changed while it was read: predict it again when it is complete'
    for use in (source.require_unchanged, lambda: source.read(whole((600, 700)))):
        with pytest.raises(UserError) as error:
            use()
        assert str(error.value) == changed
    assert source.identity() != open_image(url, str).identity()


def test_a_server_without_parts_is_refused(server):
    server.knows_ranges = False
    assert refused(server) == f'{server.url("/cog.tif")}: {PARTS}; {HINT}'


def test_a_server_that_is_not_there_or_answers_with_an_error_is_named(server):
    assert refused(server, '/none.tif').endswith(
        '/none.tif: the server answers 404 Not Found; check the address'
    )
    server.errors = [500] * 3
    assert refused(server).endswith('(the server answers 500 Internal Server Error); try again')
    server.errors = [503, 429]
    assert open_image(server.url('/cog.tif'), str).shape == (600, 700, 3)
    server.go_away()
    assert 'cannot be reached' in refused(server)


@pytest.mark.parametrize('breaks_by', ['close', 'reset', 'silence'])
def test_a_server_that_stops_is_named(server, monkeypatch, breaks_by):
    monkeypatch.setattr(http, 'TIMEOUT', 0.3)
    server.breaks_by = breaks_by
    source = open_image(server.url('/cog.tif'), str)
    server.cuts = [1000, 0]  # then it answers
    expected = source.read(WINDOW)
    server.cuts = [1000] * 3
    with pytest.raises(UserError, match=r'/cog.tif: the connection broke off \(.*\); try again$'):
        source.read(whole((600, 700)))
    assert np.array_equal(source.read(WINDOW), expected)


def test_an_address_leads_to_no_other_file(server, file, tmp_path):
    secret = tmp_path / 'secret.tif'
    secret.write_bytes(file.read_bytes())
    text = (
        '<VRTDataset rasterXSize="9" rasterYSize="9"><VRTRasterBand dataType="Byte" band="1">'
        f'<SimpleSource><SourceFilename>{secret}</SourceFilename></SimpleSource></VRTRasterBand>'
        '</VRTDataset>'
    )
    server.files['/text.tif'] = text.encode()
    sentence = refused(server, '/text.tif')
    assert sentence.startswith(f'{server.url("/text.tif")} cannot be opened (RasterioIOError: ')
    server.redirects['/local.tif'] = f'file://{secret}'
    assert f"url 'file://{secret}' is not allowed" in refused(server, '/local.tif')
    server.requests.clear()
    open_image(server.url('/cog.tif'), str).read(WINDOW)
    assert {*server.requests} == {'/cog.tif'}  # no overviews, worlds or metadata next to it


def test_a_redirect_to_a_web_address_is_followed(server, file):
    server.redirects['/moved.tif'] = server.url('/cog.tif')
    source = open_image(server.url('/moved.tif'), str)
    assert np.array_equal(source.read(WINDOW), Raster(file, ReadOptions()).read(WINDOW))


def test_a_mask_without_levels_is_read_at_a_level(server, tmp_path):
    path, mask = tmp_path / 'a.tif', np.arange(300)[:, None] > np.arange(200)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        with rasterio.open(path, 'w', height=300, width=200, count=1, dtype='uint8') as file:
            file.write(np.ones((1, 300, 200), np.uint8))
            file.build_overviews([2])
        with rasterio.open(path, 'r+') as file:
            file.write_mask(mask)
            expected = file.read_masks(1, out_shape=(150, 100)) > 0
    server.files['/a.tif'] = path.read_bytes()
    source = open_image(server.url('/a.tif'), str, level=1)
    assert np.array_equal(source.valid(whole((150, 100))), expected)


def test_a_header_that_would_take_minutes_is_refused(server, tmp_path):
    metadata = ''.join(f'<Item name="{i}">v</Item>' for i in range(20000))
    tags = [(42112, 's', 0, f'<GDALMetadata>{metadata}</GDALMetadata>', True)]
    tifffile.imwrite(tmp_path / 'a.tif', np.zeros((64, 64), np.uint8), extratags=tags)
    server.files['/a.tif'] = (tmp_path / 'a.tif').read_bytes()
    assert 'bytes of metadata, too many to read' in refused(server, '/a.tif')
