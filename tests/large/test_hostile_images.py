"""Images and slides that would hang, fill the memory or make a library read other files."""

import os
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio
from helpers.random_weights import SEGMENTOR
from PIL import Image
from tifffile import imwrite

PIXELS = np.random.default_rng(0).integers(0, 255, (128, 160, 3), np.uint8)
PIPE = object()
Content = str | bytes | Path | Callable[[Path], object]


def put(path: Path, content: Content) -> None:
    """Make a file, a link to a path, a pipe, or what a function writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is PIPE:
        os.mkfifo(path)
    elif isinstance(content, Path):
        path.symlink_to(content)
    elif callable(content):
        content(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


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


def npy(shape: str) -> bytes:
    """Return an array of 1,000 bytes that claims any shape."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(header)) + header + bytes(1000)


def sakura(path: Path, mode: str = 'delete') -> None:
    connection = sqlite3.connect(path)
    connection.execute(f'PRAGMA journal_mode={mode}')
    connection.execute('CREATE TABLE slide(a)')
    connection.close()


def dicom(path: Path) -> None:
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


def of_wide_tiles(side: int) -> Callable[[Path], None]:
    """Return a function that writes a TIFF file without pixels, of which GDAL reads zeros."""
    options = dict(driver='GTiff', sparse_ok=True, compress='deflate', bigtiff='yes', tiled=True)
    options |= dict(width=side, height=side, count=3, dtype='uint8')
    return lambda path: rasterio.open(
        path, 'w', blockxsize=2**14, blockysize=2**14, **options
    ).close()


VMS = '[Virtual Microscope Specimen]\nNoLayers=1\nNoJpegColumns=1\nNoJpegRows=1\n'
VMU = '[Uncompressed Virtual Microscope Specimen]\nNoLayers=1\n'
PARTS = 'ImageFile=p\nMapFile=p'
MIRAX = '[HIERARCHICAL]\nINDEXFILE={}\n[DATAFILE]\nFILE_COUNT=1\nFILE_0={}\n'
DEVICE = '../' * 20 + 'dev/zero'
METADATA = ''.join(f'<Item name="{i}">v</Item>' for i in range(20000))
METADATA = f'<GDALMetadata>{METADATA}</GDALMetadata>'
GRAY = dict(photometric='minisblack', planarconfig='contig')  # any number of channels
UNKNOWN, DAMAGED = 'cannot be opened', 'copy or repair the file'
TOO_LARGE, OTHER_FOLDER = 'are possible: write it with smaller blocks', 'have to be in its folder'
NOT_REGULAR, OTHER_SUFFIX = 'is a link, a pipe or a device', 'its suffix is not one of this format'
SHAPE = 'shape {} is not (H, W, channels)'
CASES = {  # a part of the sentence about a file, the file, and the files that belong to it
    'text.tif': (UNKNOWN, '<VRTDataset rasterXSize="9"><SRS/></VRTDataset>'),
    'text.svs': (UNKNOWN, 'no slide'),
    'text.npy': (UNKNOWN, 'no array'),
    'cut.tif': (DAMAGED, lambda p: imwrite(p, PIXELS) or os.truncate(p, 2**14)),
    'bands.tif': (
        'has 65000 channels, but at most 4096 can be read',
        lambda p: imwrite(p, np.zeros((8, 8, 65000), np.uint8), compression='zlib', **GRAY),
    ),
    'metadata.tif': (
        'bytes of metadata, too many to read',
        lambda p: imwrite(p, PIXELS, extratags=[(42112, 's', 0, METADATA, True)]),
    ),
    'tile.tif': (TOO_LARGE, of_wide_tiles(2**20)),
    'tile.svs': (TOO_LARGE, of_wide_tiles(2**14)),
    'cut.jp2': (DAMAGED, lambda p: jpeg2000(p, lambda c: c[: len(c) // 2])),
    'large.jp2': ('code blocks, but at most', lambda p: jpeg2000(p, of_size(2**31 - 1, 2**31 - 1))),
    'wide.jp2': ('code blocks, but at most', lambda p: jpeg2000(p, of_size(2**31 - 1, 3))),
    'object.npy': (UNKNOWN, lambda p: np.save(p, np.array([[1, 'a']], object))),
    'archive.npy': (UNKNOWN, lambda p: np.savez(p.open('wb'), a=PIXELS)),
    'huge.npy': (UNKNOWN, npy('(4294967296, 4294967296, 3)')),
    'four.npy': (SHAPE.format('(1, 128, 160, 3)'), lambda p: np.save(p, PIXELS[None])),
    'pipe.vms': (NOT_REGULAR, VMS + PARTS, {'p': PIPE}),
    'pipe.svs': (OTHER_SUFFIX, VMS + PARTS, {'p': PIPE}),
    'pipe.scn': (OTHER_SUFFIX, VMU + PARTS, {'p': PIPE}),
    'device.vms': (OTHER_FOLDER, f'{VMS}ImageFile={DEVICE}\nMapFile=x'),
    'device.vmu': (OTHER_FOLDER, VMU + 'MapFile=x\n\t ImageFile = /dev/zero'),
    'link.vms': (NOT_REGULAR, VMS + 'MapFile=x', {'x': Path('/dev/zero')}),
    'device.mrxs': (OTHER_FOLDER, '', {'device/Slidedat.ini': MIRAX.format('i', DEVICE)}),
    'index.mrxs': (OTHER_FOLDER, '', {'index/Slidedat.ini': MIRAX.format('../i', 'd')}),
    'pipe.mrxs': (NOT_REGULAR, '', {'pipe/Slidedat.ini': MIRAX.format('p', 'p'), 'pipe/p': PIPE}),
    'text.mrxs': (NOT_REGULAR, '', {'text/Slidedat.ini': PIPE}),
    'pipe.dcm': (NOT_REGULAR, dicom, {'p': PIPE}),
    'dicom.svs': (OTHER_SUFFIX, dicom, {'p': PIPE}),
    'a.svslide': ('unfinished database', sakura, {'a.svslide-journal': PIPE}),
    'log.svslide': ('unfinished database', lambda p: sakura(p, mode='wal')),
    'trestle.svs': (OTHER_SUFFIX, lambda p: imwrite(p, PIXELS, tile=(64, 64), software='MedScan')),
}


@pytest.fixture(scope='module')
def printed(run_tool, weights, tmp_path_factory) -> str:
    """What tools/infer.py prints about all files."""
    folder, paths = tmp_path_factory.mktemp('hostile'), []
    for name, (_, content, *more) in CASES.items():
        paths.append(folder / name.replace('.', '_') / name)
        for other, its_content in {name: content, **dict(*more)}.items():
            put(paths[-1].parent / other, its_content)
    command = 'infer.py', SEGMENTOR, weights[SEGMENTOR], *paths, '--stream', '--memory', '1GiB'
    done = run_tool(*command, '--out', folder / 'out')
    assert done.returncode == 2  # no image was predicted
    assert 'Traceback' not in done.stderr
    return done.stderr


@pytest.mark.parametrize('name', CASES)
def test_a_hostile_file_is_refused_in_a_sentence(printed, name):
    (line,) = [line for line in printed.splitlines() if f'/{name}' in line]
    assert CASES[name][0] in line
