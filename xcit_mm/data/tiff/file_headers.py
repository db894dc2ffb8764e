"""Checks of an image file before GDAL or openslide opens it.

GDAL takes minutes to open some files of a megabyte, and openslide opens any other file that a slide
names. Neither library can check a file without opening it.
"""

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ...base.errors import UserError, one_line
from ...base.files import open_regular

TIFF, SQLITE = (b'II', b'MM'), b'SQLite format 3\x00'
WRITE_AHEAD = 2  # a format of SQLite that creates files next to the database, even to read it
GDAL_METADATA = 42112  # the TIFF tag of the XML text in which GDAL keeps names and values
PHOTOMETRIC, ORIENTATION = 262, 274  # TIFF tags with one short number
PLACES = 33550, 33922, 34264, 34735, 50844  # the TIFF tags of places on the map (GeoTIFF, RPC)
CITATIONS = 34737  # the TIFF tag of the texts of a GeoTIFF, in which ESRI keeps WKT
# For these parts of WKT, PROJ opens a file when GDAL opens the image; ESRI writes none of them.
ESRI, COMPUTATION = b'PE STRING', re.compile(rb'EXTENSION|PARAMETERFILE|"PROJ')
# Bytes of such texts. GDAL compares each name with all names before it.
MAX_METADATA = 2**18
MAX_TAGS = 2**12  # of a directory, as in libtiff
# Markers of JPEG 2000 (ISO/IEC 15444-1, annex A), and the bytes in which they are searched for.
SIZE, CODING, CODING_OF_COMPONENT, DATA, MAX_MARKERS = 0xFF51, 0xFF52, 0xFF53, 0xFF93, 2**17
MAX_CODE_BLOCKS = 2**20
# The formats of openslide that consist of one file, and those that consist of several.
SINGLE_FILES = ('aperio', 'generic-tiff', 'leica', 'philips', 'sakura', 'ventana', 'zeiss')
SEVERAL_FILES = {'.mrxs': 'mirax', '.vms': 'hamamatsu', '.vmu': 'hamamatsu', '.dcm': 'dicom'}
# The name of a file in another folder, in a .vms or .vmu file or in the Slidedat.ini of MIRAX.
IN_OTHER_FOLDER = re.compile(
    rb'(?m)^\s*(?:ImageFile|MapFile|MacroImage|OptimisationFile|INDEXFILE|FILE_)[^=\n]*='
    rb'(.*[/\\].*)$'
)
# What the struct module and files raise where a header is damaged.
DAMAGED = OSError, ValueError, LookupError, struct.error
MAX_TEXT = 2**20  # bytes; openslide refuses longer texts


class Tags(NamedTuple):
    """What the header of a TIFF file says about its pixels and GDAL does not pass on.

    Attributes:
        photometric: The number of the color space in TIFF 6.0; 0 is gray with 0 as white, 1
            gray, 2 RGB, 3 a palette, and more are other spaces.
        orientation: How to turn the image for display, 1 to 8, as in EXIF. 1, not at all, if the
            image has a place on the map, which is the place of the pixels as they are stored.
    """

    photometric: int = 1
    orientation: int = 1


def require_modest_header(path: Path) -> Tags:
    """Refuse a TIFF or JPEG 2000 file that takes GDAL minutes or tens of GiB to read."""
    try:
        with open_regular(path) as file:
            if path.suffix.lower() != '.jp2':
                return require_modest_tiff(path, file)
            start, citations = _jpeg2000_boxes(file)
            file.seek(start)
            code_blocks = _code_blocks(file.read(MAX_MARKERS))
    except DAMAGED:
        return Tags()  # GDAL says what is wrong with such a file
    _require_plain_citations(path, citations)
    if code_blocks > MAX_CODE_BLOCKS:
        raise UserError(
            f'{path} has a tile of {code_blocks} code blocks, but at most {MAX_CODE_BLOCKS} can be '
            'read at a time: write it with smaller tiles, or as a TIFF file'
        )
    return Tags()


def require_modest_tiff(name: Path | str, file: BinaryIO, directory: int | None = None) -> Tags:
    """Return tags of a TIFF file, and refuse one that takes GDAL minutes to read.

    ``directory`` is where the directory that is read begins. Default: the first one.
    """
    try:
        entries = [*_tiff_entries(file, directory)]
    except DAMAGED:
        return Tags()
    texts = [entry for entry in entries if entry.tag in (GDAL_METADATA, CITATIONS)]
    if sum(entry.count for entry in texts) > MAX_METADATA:
        raise UserError(
            f'{name} has more than {MAX_METADATA} bytes of metadata, too many to read: copy it '
            'with gdal_translate -nomd'
        )
    citations = b''.join(_values(file, entry) for entry in texts if entry.tag == CITATIONS)
    _require_plain_citations(name, citations)
    values = {e.tag: e.short for e in reversed(entries)}  # libtiff reads the first entry of a tag
    is_turned = values.get(ORIENTATION) in range(1, 9) and values.keys().isdisjoint(PLACES)
    return Tags(values.get(PHOTOMETRIC, 1), values[ORIENTATION] if is_turned else 1)


def _require_plain_citations(name: Path | str, citations: bytes) -> None:
    _, _, text = citations.upper().partition(ESRI)
    if COMPUTATION.search(text):
        raise UserError(
            f'{name} has a reference system of ESRI that may name a file or a computation: replace '
            'it with gdal_edit.py -a_srs if you trust it'
        )


class _Entry(NamedTuple):
    """A tag in a directory of a TIFF file, the number of its values, and where they are.

    ``short`` is the value of a tag with one short number.
    """

    tag: int
    count: int
    start: int
    short: int


def _values(file: BinaryIO, entry: _Entry) -> bytes:
    try:
        file.seek(entry.start)
        return file.read(min(entry.count, MAX_METADATA))
    except (OSError, OverflowError, ValueError):
        return b''  # another entry of this tag may be the one that counts


def _tiff_entries(file: BinaryIO, directory: int | None) -> Iterator[_Entry]:
    """Yield the tags in a directory of a TIFF or BigTIFF file."""
    file.seek(0)
    order = '<' if file.read(2) == TIFF[0] else '>'

    def read(layout: str) -> int:
        return struct.unpack(order + layout, file.read(struct.calcsize(order + layout)))[0]

    is_big = read('H') == 43
    if is_big:
        file.seek(8)
    first = read('Q' if is_big else 'I')
    file.seek(first if directory is None else directory)
    layout = 'HHQQ' if is_big else 'HHII'  # the tag, its type, and the number and place of values
    size = struct.calcsize(order + layout)
    entries = file.read(min(MAX_TAGS, read('Q' if is_big else 'H')) * size)
    for tag, _, count, start in struct.iter_unpack(
        order + layout, entries[: len(entries) // size * size]
    ):
        (short,) = struct.unpack_from(order + 'H', struct.pack(order + layout[3], start))
        yield _Entry(tag, count, start, short)


def _jpeg2000_boxes(file: BinaryIO) -> tuple[int, bytes]:
    """Return where the image of a JPEG 2000 file begins, and what its georeference may be in."""
    image, start, end, citations = 0, 0, os.fstat(file.fileno()).st_size, b''
    while start < end:
        file.seek(start)
        size, kind = struct.unpack('>I4s', file.read(8))
        if size == 1:
            size = struct.unpack('>Q', file.read(8))[0]
        if size < 8:  # the last box, which ends with the file
            size = end - start
        if kind == b'uuid' and len(citations) < MAX_METADATA:
            citations += file.read(min(size, MAX_METADATA))
        if kind == b'jp2c' and not image:
            image = file.tell()
        start += size
    return image, citations


def _code_blocks(header: bytes) -> int:
    """Return the most code blocks of a tile of a JPEG 2000 image, from its markers.

    OpenJPEG keeps about 400 bytes for each code block of a tile, of which it reads a part.
    """
    samples, of_block, start = 0, 2**12, 2
    while start + 4 <= len(header):
        marker, size = struct.unpack_from('>HH', header, start)
        content = header[start + 4 : start + 2 + size]
        if marker == SIZE:
            width, height, left, top, *tile, _, _, count = struct.unpack_from('>8IH', content, 2)
            samples = min(width - left, tile[0]) * min(height - top, tile[1]) * count
        elif marker in (CODING, CODING_OF_COMPONENT):
            at = 6 if marker == CODING else 2 + (count > 256) + 1
            exponents = [content[at] + content[at + 1] + 4]
            exponents += [(byte & 15) + (byte >> 4) for byte in content[at + 4 :]]  # precincts
            of_block = min(of_block, *(2**exponent for exponent in exponents))
        elif marker == DATA:
            break
        start += 2 + size
    return samples // of_block


def require_own_files(path: Path) -> Path:
    """Return the real path of a slide for which openslide opens only regular files in its folder.

    openslide decides by the content which format a file has. Slides of Aperio, Leica, Philips,
    Sakura, Ventana and Zeiss, Hamamatsu's NDPI and tiled TIFF files are single files. A VMS or VMU
    file of Hamamatsu names other files, MIRAX has a folder of its own with a text that names
    files, and for a DICOM slide, openslide opens all files in its folder. Slides of Trestle are
    .tif files, so rasterio reads them.

    Raises:
        UserError: If no such slide is there, if it consists of several files and has the suffix of
            another format, if a name in it leads to another folder, or if there is a link, a pipe
            or a device where openslide looks for files.
    """
    import openslide

    real = path.resolve()
    with open_regular(real) as file:
        text = file.read(MAX_TEXT)
    if text.startswith(SQLITE):
        journals = [f'{real}{suffix}' for suffix in ('-journal', '-wal')]
        if WRITE_AHEAD in text[18:20] or any(map(os.path.lexists, journals)):
            raise UserError(f'{path} is an unfinished database: copy it with sqlite3 "VACUUM INTO"')
    vendor = openslide.OpenSlide.detect_format(real)
    if vendor is None:
        raise UserError(f'{path} cannot be opened: openslide knows no slides of this kind')
    if vendor in SINGLE_FILES or (vendor == 'hamamatsu' and text.startswith(TIFF)):
        return real
    if SEVERAL_FILES.get(real.suffix.lower()) != vendor:
        raise UserError(
            f'{path} is a slide of the format {vendor}, which can name other files, and its suffix '
            'is not one of this format: rename it if you trust it'
        )
    is_mirax = vendor == 'mirax'
    folder = real.with_suffix('') if is_mirax else real.parent
    _require_regular_files(path, folder)
    if is_mirax:
        with open_regular(folder / 'Slidedat.ini') as file:
            text = file.read(MAX_TEXT)
    if outside := IN_OTHER_FOLDER.search(text):
        name = one_line(outside[1].strip().decode(errors='replace'))
        raise UserError(
            f'{path} names the file {name}, but the files of a slide have to be in its folder: '
            'remove the folder from the name'
        )
    return real


def _require_regular_files(slide: Path, folder: Path) -> None:
    """Refuse a folder that is a link, or that holds anything but folders and regular files."""
    for path in (folder, *folder.iterdir()):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise UserError(
                f'{slide}: {path} is a link, a pipe or a device, and openslide may read it as a '
                'part of the slide: move it away'
            )
