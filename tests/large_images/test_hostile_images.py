"""Images and slides that would hang, fill the memory or make a library read other files."""

import os
import resource
import signal
import sqlite3
import struct
from pathlib import Path

import numpy as np
import pytest
import rasterio
import tifffile
from helpers.large_images import normalized
from helpers.random_weights import SEGMENTOR
from PIL import Image

from xcit_mm.large_images import window_files as images
from xcit_mm.large_images.geometry import Window
from xcit_mm.large_images.window_files import open_image

PIXELS = np.random.default_rng(0).integers(0, 255, (128, 160, 3), np.uint8)
VMS = '[Virtual Microscope Specimen]\nNoLayers=1\nNoJpegColumns=1\nNoJpegRows=1\n'
VMU = '[Uncompressed Virtual Microscope Specimen]\nNoLayers=1\n'
MIRAX = '[HIERARCHICAL]\nINDEXFILE={}\n[DATAFILE]\nFILE_COUNT=1\nFILE_0={}\n'
DEVICE = '../' * 20 + 'dev/zero'


tiff = tifffile.imwrite


def sparse(path: Path, side: int, bands: int, **options) -> None:
    """Write a TIFF file without pixels, of which GDAL reads zeros."""
    options = dict(driver='GTiff', sparse_ok=True, compress='deflate', bigtiff='yes') | options
    options |= dict(width=side, height=side, count=bands, dtype='uint8')
    with rasterio.open(path, 'w', **options):
        pass


def jpeg2000(path: Path, change=lambda content: content) -> None:
    Image.fromarray(PIXELS).save(path)
    path.write_bytes(change(path.read_bytes()))


def of_size(width: int, height: int):
    """Return a function that writes another size into the header of a JPEG 2000 file."""

    def change(content: bytes) -> bytes:
        box, marker = content.index(b'ihdr') + 4, content.index(b'\xff\x51') + 6
        content = bytearray(content)
        content[box : box + 8] = struct.pack('>II', height, width)
        content[marker : marker + 8] = content[marker + 16 : marker + 24] = struct.pack(
            '>II', width, height
        )
        return bytes(content)

    return change


def with_metadata(content: bytes) -> bytes:
    start = content.index(b'jp2c') - 4
    return content[:start] + struct.pack('>I4s', 2**19, b'xml ').ljust(2**19) + content[start:]


def npy(path: Path, shape: str, descr: str = '|u1', fortran: bool = False) -> None:
    header = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}}}\n".encode()
    path.write_bytes(b'\x93NUMPY\x01\x00' + struct.pack('<H', len(header)) + header + bytes(1000))


def text(path: Path, content: str, more=lambda folder: None) -> None:
    """Write a text into a folder of its own, in which ``more`` may write other files."""
    path.write_text(content)
    more(path.parent)


def pipe(name: str):
    return lambda folder: os.mkfifo(folder / name)


def link(name: str, target: str):
    return lambda folder: (folder / name).symlink_to(target)


def mirax(path: Path, content: str | None, more=lambda folder: None) -> None:
    path.write_text('')
    path.with_suffix('').mkdir()
    if content is not None:
        (path.with_suffix('') / 'Slidedat.ini').write_text(content)
    more(path.with_suffix(''))


def sakura(path: Path, more=lambda folder: None, mode: str = 'delete') -> None:
    connection = sqlite3.connect(path)
    connection.execute(f'PRAGMA journal_mode={mode}')
    connection.execute('CREATE TABLE slide(a)')
    connection.close()
    more(path.parent)


def dicom(path: Path, more=lambda folder: None) -> None:
    """Write the beginning of a DICOM slide, which openslide takes for one."""

    def element(group: int, number: int, kind: bytes, value: bytes) -> bytes:
        value += b'\0' * (len(value) % 2)
        return struct.pack('<HH2sH', group, number, kind, len(value)) + value

    slide = b'1.2.840.10008.5.1.4.1.1.77.1.6'
    meta = element(2, 2, b'UI', slide) + element(2, 3, b'UI', b'1.2.3')
    meta += element(2, 16, b'UI', b'1.2.840.10008.1.2.1')
    meta = element(2, 0, b'UL', struct.pack('<I', len(meta))) + meta
    series = element(8, 0x16, b'UI', slide) + element(0x20, 0xE, b'UI', b'1.2.9')
    path.write_bytes(bytes(128) + b'DICM' + meta + series)
    more(path.parent)


METADATA = ''.join(f'<Item name="{i}">v</Item>' for i in range(20000))
METADATA = f'<GDALMetadata>{METADATA}</GDALMetadata>'
GRAY = dict(photometric='minisblack', planarconfig='contig')  # any number of channels
WIDE_TILES = dict(tiled=True, blockxsize=2**14, blockysize=2**14)
UNKNOWN, DAMAGED = 'cannot be opened', 'copy or repair the file'
TOO_LARGE, OTHER_FOLDER = 'are possible: convert it with gdal_translate', 'have to be in its folder'
NOT_REGULAR, OTHER_SUFFIX = 'is a link, a pipe or a device', 'its suffix is not one of this format'
CASES = {  # what writes the file, and a part of the sentence about it
    'none.tif': (lambda p: None, 'none.tif does not exist'),
    'text.tif': (lambda p: text(p, '<VRTDataset rasterXSize="9"><SRS/></VRTDataset>'), UNKNOWN),
    'text.svs': (lambda p: text(p, 'no slide'), UNKNOWN),
    'text.npy': (lambda p: text(p, 'no array'), UNKNOWN),
    'cut.tif': (lambda p: tiff(p, PIXELS) or os.truncate(p, 2**14), DAMAGED),
    '2.tif': (lambda p: tiff(p, PIXELS[..., :2], **GRAY), 'has 2 channels'),
    'palette.tif': (
        lambda p: tiff(p, PIXELS[..., 0], photometric='palette', colormap=np.zeros((3, 256), 'u2')),
        'has a palette: convert it',
    ),
    'nan.tif': (
        lambda p: tiff(p, PIXELS * np.float32('nan')),
        'values of type float32, but the model needs uint8 or uint16',
    ),
    'bands.tif': (
        lambda p: tiff(p, np.zeros((8, 8, 65000), np.uint8), compression='zlib', **GRAY),
        'has 65000 channels, but at most 4096 can be read',
    ),
    'metadata.tif': (
        lambda p: tiff(p, PIXELS, extratags=[(42112, 's', 0, METADATA, True)]),
        'bytes of metadata, too many to read',
    ),
    'tile.tif': (lambda p: sparse(p, 2**20, 3, **WIDE_TILES), TOO_LARGE),
    'tile.svs': (lambda p: sparse(p, 2**14, 3, **WIDE_TILES), TOO_LARGE),
    'no_tag.tif': (lambda p: p.write_bytes(b'II*\0\x08\0\0\0'), UNKNOWN),
    'offset.tif': (lambda p: p.write_bytes(b'II+\0\x08\0\0\0' + b'\xff' * 8), UNKNOWN),
    'empty.jp2': (lambda p: p.write_bytes(b''), UNKNOWN),
    'header.jp2': (lambda p: jpeg2000(p, lambda c: c[:200]), UNKNOWN),
    'cut.jp2': (lambda p: jpeg2000(p, lambda c: c[: len(c) // 2]), DAMAGED),
    'large.jp2': (lambda p: jpeg2000(p, of_size(2**31 - 1, 2**31 - 1)), 'code blocks, but at most'),
    'wide.jp2': (lambda p: jpeg2000(p, of_size(2**31 - 1, 3)), 'code blocks, but at most'),
    'metadata.jp2': (lambda p: jpeg2000(p, with_metadata), 'bytes of metadata'),
    'object.npy': (lambda p: np.save(p, np.array([[1, 'a']], object)), UNKNOWN),
    'archive.npy': (lambda p: np.savez(p.open('wb'), a=PIXELS), UNKNOWN),
    'negative.npy': (lambda p: npy(p, '(-5, 20, 3)'), UNKNOWN),
    'huge.npy': (lambda p: npy(p, '(4294967296, 4294967296, 3)'), UNKNOWN),
    'longer.npy': (lambda p: npy(p, '(2000, 2000, 3)', fortran=True), UNKNOWN),
    'bands.npy': (lambda p: npy(p, '(1, 1, 65000)'), UNKNOWN),
    '4.npy': (lambda p: np.save(p, PIXELS[None]), 'shape (1, 128, 160, 3) is not (H, W, channels)'),
    'scalar.npy': (lambda p: np.save(p, np.uint8(1)), 'shape () is not (H, W, channels)'),
    'bool.npy': (lambda p: np.save(p, PIXELS > 9), 'values of type bool'),
    'fields.npy': (lambda p: np.save(p, np.zeros((9, 9), 'u1,u1')), "values of type [('f0'"),
    'pipe.vms': (lambda p: text(p, VMS + 'ImageFile=p\nMapFile=p', pipe('p')), NOT_REGULAR),
    'pipe.svs': (lambda p: text(p, VMS + 'ImageFile=p\nMapFile=p', pipe('p')), OTHER_SUFFIX),
    'pipe.ndpi': (lambda p: text(p, VMS + 'ImageFile=p\nMapFile=p', pipe('p')), OTHER_SUFFIX),
    'pipe.scn': (lambda p: text(p, VMU + 'ImageFile=p\nMapFile=p', pipe('p')), OTHER_SUFFIX),
    'device.vms': (lambda p: text(p, f'{VMS}ImageFile={DEVICE}\nMapFile=x'), OTHER_FOLDER),
    'device.vmu': (lambda p: text(p, f'{VMU}MapFile=x\n\t ImageFile = /dev/zero'), OTHER_FOLDER),
    'part.vms': (lambda p: text(p, VMS + 'ImageFile(1,0)=../x\n'), 'names the file ../x'),
    'windows.vms': (lambda p: text(p, VMS + 'MacroImage=..\\x\n'), r'names the file ..\x'),
    'link.vms': (lambda p: text(p, VMS + 'MapFile=x', link('x', '/dev/zero')), NOT_REGULAR),
    'other.vms': (lambda p: text(p, VMS + 'MapFile=x', link('x', __file__)), NOT_REGULAR),
    'missing.vms': (lambda p: text(p, VMS + 'ImageFile=x\nMapFile=x'), UNKNOWN),
    'device.mrxs': (lambda p: mirax(p, MIRAX.format('i', DEVICE)), OTHER_FOLDER),
    'index.mrxs': (lambda p: mirax(p, MIRAX.format('../i', 'd')), OTHER_FOLDER),
    'pipe.mrxs': (lambda p: mirax(p, MIRAX.format('p', 'p'), pipe('p')), NOT_REGULAR),
    'text.mrxs': (lambda p: mirax(p, None, pipe('Slidedat.ini')), NOT_REGULAR),
    'folder.mrxs': (lambda p: text(p, '', link('folder', p.parent.parent)), UNKNOWN),
    'own.mrxs': (lambda p: mirax(p, MIRAX.format('i', 'd')), 'cannot be opened (OpenSlideError'),
    'pipe.dcm': (lambda p: dicom(p, pipe('p')), NOT_REGULAR),
    'dicom.svs': (lambda p: dicom(p, pipe('p')), OTHER_SUFFIX),
    'own.dcm': (dicom, 'cannot be opened (OpenSlideError'),
    'a.svslide': (lambda p: sakura(p, pipe('a.svslide-journal')), 'unfinished database'),
    'log.svslide': (lambda p: sakura(p, mode='wal'), 'unfinished database'),
    'trestle.svs': (lambda p: tiff(p, PIXELS, tile=(64, 64), software='MedScan'), OTHER_SUFFIX),
}


@pytest.fixture(scope='module')
def printed(run_tool, weights, tmp_path_factory) -> str:
    """What tools/infer.py prints about all files."""
    folder, paths = tmp_path_factory.mktemp('hostile'), []
    for number, (name, (write, _)) in enumerate(CASES.items()):
        path = folder / str(number) / name
        path.parent.mkdir()
        write(path)
        paths.append(path)
    command = 'infer.py', SEGMENTOR, weights[SEGMENTOR], *paths, '--stream', '--memory', '1GiB'
    done = run_tool(*command, '--out', folder / 'out')
    assert done.returncode == 2  # no image was predicted
    assert 'Traceback' not in done.stderr
    return done.stderr


@pytest.mark.parametrize('name', CASES)
def test_a_hostile_file_is_refused_in_a_sentence(printed, name):
    (line,) = [line for line in printed.splitlines() if f'/{name}' in line]
    assert CASES[name][1] in line


def test_the_files_of_a_slide_are_read_in_its_folder(segmentor, tmp_path):
    folder = tmp_path / 'slide'
    folder.mkdir()
    Image.fromarray(PIXELS).save(folder / 'i.jpg', subsampling=0, restart_marker_blocks=20)
    Image.fromarray(PIXELS[::4, ::4]).save(folder / 'm.jpg', subsampling=0, restart_marker_blocks=5)
    size = 'PhysicalWidth=9\nPhysicalHeight=9\n'
    (folder / 'a.vms').write_text(f'{VMS}ImageFile=i.jpg\nMapFile=m.jpg\n{size}')
    (tmp_path / 'b.vms').symlink_to(folder / 'a.vms')
    with Image.open(folder / 'i.jpg') as image:
        expected = np.asarray(image)
    for path in (folder / 'a.vms', tmp_path / 'b.vms'):
        source = open_image(path, segmentor.read)
        assert source.shape == PIXELS.shape
        pixels = source.read(Window(slice(8, 80), slice(16, 100)))
        assert np.abs(pixels.astype(int) - expected[8:80, 16:100]).mean() < 2


@pytest.mark.parametrize('name', ['bands.tif', 'planar.tif', 'bands.npy'])
def test_bands_that_a_model_does_not_need_take_no_memory(segmentor, tmp_path, name):
    path = tmp_path / name
    if path.suffix == '.npy':
        np.lib.format.open_memmap(path, 'w+', np.uint8, (1024, 1024, 1000)).flush()
    else:
        interleave = 'pixel' if name == 'bands.tif' else 'band'
        sparse(path, 1024, 1000, tiled=True, interleave=interleave)
    child = os.fork()
    if not child:
        try:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            image = normalized(path, segmentor, 3)
            assert image[:, slice(0, 1024), slice(0, 1024)].shape == (3, 1024, 1024)
            taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            os._exit(int(taken > 2**19))  # KiB; all bands take twice as much
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize('order', ['C', 'F'])
def test_an_array_of_any_byte_order_and_axes_is_read(segmentor, tmp_path, order):
    wide = PIXELS.astype('>u2' if order == 'C' else '<u2') * 257
    np.save(tmp_path / 'a.npy', np.asarray(wide, order=order))
    image = normalized(tmp_path / 'a.npy', segmentor, 3)
    window = Window(slice(3, 120), slice(5, 150))
    assert np.array_equal(image.pixels(window), PIXELS[tuple(window)])


def test_wide_strips_are_read_in_rows_that_are_kept(segmentor, tmp_path, monkeypatch):
    pixels = np.tile(PIXELS, (3, 2, 1))
    tifffile.imwrite(tmp_path / 'a.tif', pixels, compression='zlib', rowsperstrip=2)
    expected = segmentor.predict_large(pixels)
    heights, read = [], images.Raster._read

    def record(source: images.Raster, window: Window) -> np.ndarray:
        heights.append(window.size[0])
        return read(source, window)

    monkeypatch.setattr(images, 'STRIP_BYTES', 100 * pixels[0].nbytes)
    monkeypatch.setattr(images.Raster, '_read', record)
    streamed = segmentor.predict_large(tmp_path / 'a.tif')
    assert max(heights) <= 100
    assert np.array_equal(streamed.labels, expected.labels)
    assert np.array_equal(streamed.picture, expected.picture)
