"""What a folder of Zarr or OME-Zarr (NGFF 0.4 and 0.5) says about its arrays."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ...base.errors import UserError, one_line
from ...base.files import read_regular
from ...base.finder import ZARR
from .axis_names import Axes, named_axes, unnamed_axes
from .pixel_sizes import PixelSize, in_micrometers, pixel_size_of

FILES = 'zarr.json', '.zarray', '.zgroup', '.zattrs'
MAX_BYTES = 2**24  # of a file
# Codecs that compute numbers from numbers. Others, such as pickle, can run code.
CODECS = {'adler32', 'bitround', 'blosc', 'bytes', 'bz2', 'crc32', 'crc32c', 'delta'}
CODECS |= {'fixedscaleoffset', 'fletcher32', 'gzip', 'jenkins_lookup3', 'lz4', 'lzma', 'packbits'}
CODECS |= {'quantize', 'sharding_indexed', 'shuffle', 'transpose', 'zlib', 'zstd'}
NUMCODECS = 'numcodecs.'  # the start of the names of numcodecs' codecs in Zarr 3
MAX_NESTED = 8  # codecs in codecs


class Node(NamedTuple):
    """An array or a group: the version of its format, 2 or 3, its metadata and its attributes."""

    version: int
    is_array: bool
    metadata: Mapping[str, Any]
    attributes: Mapping[str, Any]


class Level(NamedTuple):
    """A level of an image: the folder of its array, its axes, (H, W), and its pixel size."""

    folder: Path
    version: int
    axes: Axes
    size: tuple[int, int]
    pixel_size: PixelSize | None


def is_zarr(path: Path) -> bool:
    """Return whether a path is a folder of Zarr, or a folder in one."""
    return ZARR in (p.suffix.lower() for p in (path, *path.parents)) and path.is_dir()


def levels_of(path: Path) -> list[Level]:
    """Return the levels of an image, from the largest one. An array has one level.

    Raises:
        UserError: If there is no image, or if its arrays are outside of ``path``, are no images of
            numbers, or have unknown codecs.
    """
    root = path.resolve()
    node = _node(path, root)
    if node.is_array:
        names = node.metadata.get('dimension_names') or node.attributes.get('_ARRAY_DIMENSIONS')
        return [_level(path, root, node, names, None)]
    try:
        return [*_scales(path, root, node)]
    except (LookupError, TypeError, AttributeError, ValueError, StopIteration):
        raise UserError(
            f'{path} is a group of Zarr without an image of OME-Zarr: name the folder of an array'
            f'{_example(path, root)}'
        ) from None


def _scales(path: Path, root: Path, group: Node) -> Iterator[Level]:
    """Yield the levels of an image of OME-Zarr."""
    image = group.attributes.get('ome', group.attributes)['multiscales'][0]
    axes = [dict(name=axis) if isinstance(axis, str) else axis for axis in image['axes']]
    names = [str(axis['name']) for axis in axes]
    for dataset in image['datasets']:
        folder = PurePosixPath(dataset['path'])
        if folder.is_absolute() or '..' in folder.parts:
            raise UserError(
                f'{path} names the folder {one_line(str(folder))!r}, but its arrays have to be in '
                'its own folder: correct the path'
            )
        node = _node(path, root / folder)
        factors = [1.0] * len(axes)
        for holder in (dataset, image):
            for change in holder.get('coordinateTransformations', ()):
                if change['type'] == 'scale':
                    factors = [a * float(b) for a, b in zip(factors, change['scale'], strict=True)]
        yield _level(path, root / folder, node, names, _pixel_size(axes, names, factors))


def _pixel_size(
    axes: Sequence[Mapping[str, Any]], names: Sequence[str], factors: Sequence[float]
) -> PixelSize | None:
    """Return the size of the pixels in micrometers, if the axes have units."""
    sides = {
        name.lower(): in_micrometers(factor, axis.get('unit'))
        for name, axis, factor in zip(names, axes, factors, strict=True)
    }
    return pixel_size_of(sides.get('y'), sides.get('x'))


def _level(
    path: Path,
    folder: Path,
    node: Node,
    names: Sequence[str] | None,
    pixel_size: PixelSize | None,
) -> Level:
    shape = node.metadata.get('shape')
    if not node.is_array or not _is_shape(shape):
        raise UserError(f'{path}: {folder} is not a Zarr array with pixels: copy it again')
    for codec in _codecs(node):
        if codec.removeprefix(NUMCODECS) not in CODECS:
            raise UserError(
                f'{path} has the codec {one_line(codec)!r}, which is not known to be safe: write '
                'it with zstd, blosc or gzip'
            )
    if names is not None and (len(names) != len(shape) or None in names):
        names = None
    axes = unnamed_axes(str(path), shape) if names is None else named_axes(str(path), shape, names)
    return Level(folder, node.version, axes, axes.shape(shape)[:2], pixel_size)


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and all(type(n) is int and 0 < n < 2**31 for n in shape)


def _codecs(node: Node) -> Iterator[str]:
    """Yield the names of all codecs of an array."""
    if node.version == 3:
        yield from _nested_codecs(node.metadata.get('codecs'), 0)
        return
    for codec in (node.metadata.get('compressor'), *(node.metadata.get('filters') or ())):
        if codec is not None:
            yield codec['id'] if isinstance(codec, dict) and 'id' in codec else str(codec)


def _nested_codecs(codecs: Any, depth: int) -> Iterator[str]:
    if not isinstance(codecs, list) or depth > MAX_NESTED:
        yield str(codecs)
        return
    for codec in codecs:
        if not isinstance(codec, dict):
            yield str(codec)
            continue
        yield str(codec.get('name'))
        settings = codec.get('configuration') or {}
        for key in ('codecs', 'index_codecs'):
            if key in settings:
                yield from _nested_codecs(settings[key], depth + 1)


def _node(path: Path, folder: Path) -> Node:
    if (folder / 'zarr.json').is_file():
        metadata = _json(path, folder / 'zarr.json')
        is_array = metadata.get('node_type') == 'array'
        return Node(3, is_array, metadata, metadata.get('attributes') or {})
    for name in ('.zarray', '.zgroup'):
        if (folder / name).is_file():
            attributes = folder / '.zattrs'
            values = _json(path, attributes) if attributes.is_file() else {}
            return Node(2, name == '.zarray', _json(path, folder / name), values)
    inside = f' in {folder.name}' if folder != path.resolve() else ''
    raise UserError(f'{path} holds no array or image of Zarr{inside}: copy it again')


def _json(path: Path, file: Path) -> Mapping[str, Any]:
    if file.is_symlink() or not file.resolve().is_relative_to(path.resolve()):
        raise UserError(f'{path}: {file} is a link: replace it with a copy')
    try:
        content = json.loads(read_regular(file, MAX_BYTES))
    except OSError as error:
        raise UserError(f'{path}: {file} cannot be read ({error.strerror})') from None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise UserError(f'{path}: {file} is not Zarr metadata: copy it again')
    return content


def _example(path: Path, root: Path) -> str:
    folders = sorted(p.name for p in root.iterdir() if any((p / name).is_file() for name in FILES))
    return f', such as {path / folders[0]}' if folders else ''
