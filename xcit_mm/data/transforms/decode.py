"""Images of any mode as 8-bit BGR, and what is wrong with an image that cannot be read."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import cv2
import numpy as np
from mmengine import fileio
from mmengine.registry import TRANSFORMS
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.WebPImagePlugin import WebPImageFile

from ...base.errors import ArgumentError, UserError, printable, reason
from ...base.files import read_regular
from ...base.finder import spelled
from ..tiff.file_headers import TIFF
from ..tiff.places import NOWHERE, are_laid_by_pixels, elsewhere, place_of_file, shown_orientation
from ..tiff.tiff_bands import color_bands, opened_tiff, read_bands, upright

# What makes an image unusable.
MISSING = 'it is missing or cannot be opened'
EMPTY = 'it is empty'
UNREADABLE = 'it is not a readable image'
CUT_OFF = 'it is cut off'
NO_PIXELS = 'one of its sides has no pixels'
OTHER_SIZE = 'it is not of the annotated size'
LABELS_MISSING = 'its label file is missing or cannot be opened'
LABELS_UNREADABLE = 'its label file cannot be read'
LABELS_OF_OTHER_SIZE = 'it is not of the size of its labels'
LABELS_ELSEWHERE = 'its labels lie elsewhere on the map'
NO_LABELS = 'none of its pixels has a label'

JPEG = b'\xff\xd8'
# The first and last bytes of a file. OpenCV before 4.11 shows the rest of a cut file in gray.
ENDS = ((JPEG, b'\xff\xd9'), (b'\x89PNG', b'IEND\xaeB`\x82'))
# By their first bytes, not with Image.open: it refuses more than 179 million pixels, which photos
# and scans can have. OpenCV decodes all of these.
OPENERS = {
    JPEG: JpegImageFile,
    b'\x89P': PngImageFile,
    b'BM': BmpImageFile,
    b'RI': WebPImageFile,
    **{b'P%d' % n: PpmImageFile for n in range(1, 7)},
}
EXIF_ORIENTATION = 0x0112
GIF = b'GIF8'
MAX_8_BITS = 255
# OpenCV's decoding at a fraction of both sides, in which JPEG skips computing.
REDUCED = {
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}
MAX_BYTES = 2**31 - 1  # of an image file, the limit of OpenCV
SILENT = 0  # a log level of OpenCV
# OpenCV 5 moved this function.
set_log_level = cv2.setLogLevel if hasattr(cv2, 'setLogLevel') else cv2.utils.logging.setLogLevel
DTYPES = tuple(map(np.dtype, ('u1', '<u2', '>u2')))  # of images in arrays
LABEL_SUFFIXES = ('.png', '.bmp', '.gif', '.jpg', '.jpeg', '.tif', '.tiff')

Size = tuple[int, int]  # width and height in pixels


class BadImageError(Exception):
    """An image that cannot be used, for one of the reasons above."""

    def __init__(self, kind: str, detail: str = '') -> None:
        super().__init__(kind, detail)  # the arguments that pickle passes to the copy
        self.kind = kind

    def __str__(self) -> str:
        return ': '.join(filter(None, self.args))


def explained(error: Exception) -> str:
    """Return an error of a reader as a sentence, with its type unless it is one of ours."""
    is_ours = isinstance(error, (BadImageError, UserError))
    return printable(str(error)) if is_ours else reason(error)


class SampleError(Exception):
    """A sample of a dataset cannot be read: the file of its image, and the error that says why."""

    def __init__(self, file: str, cause: Exception) -> None:
        super().__init__(file, cause)
        self.file, self.cause = file, cause


@TRANSFORMS.register_module()
class LoadImage:
    """Load an image as mmcv's ``LoadImageFromFile`` does, and refuse damaged ones.

    Reads ``img_path`` or the decoded ``img``, and if they are there ``seg_map_path`` and the
    annotated ``width`` and ``height``. Sets ``img``, BGR of shape (H, W, 3), and ``img_shape``
    and ``ori_shape``, both (H, W).

    Args:
        to_float32: Whether to convert the image from uint8 to float32.
        draft: Sides (long, short) in pixels of the largest image that a ``DraftResize``, which has
            to follow, makes of this one. A JPEG file is decoded at 1/2, 1/4 or 1/8 of its size if
            that is not smaller. ``img_shape`` and ``ori_shape`` remain the size of the whole image.
            None: all pixels are decoded.
        backend_args: Arguments of mmengine's file backend for data that is not in local files.

    Raises:
        BadImageError: If the image or its label image is missing or damaged, or has another size
            than annotated, or if they lie elsewhere on the map.
    """

    def __init__(
        self,
        to_float32: bool = False,
        backend_args: dict | None = None,
        draft: tuple[int, int] | None = None,
    ) -> None:
        self.to_float32 = to_float32
        self.draft = draft
        self.backend_args = backend_args

    def __call__(self, results: dict) -> dict:
        annotated = results.get('width'), results.get('height')
        annotated = None if None in annotated else annotated
        label_size = self._check_labels(results)
        image = results.get('img')
        if image is None:
            path = results['img_path']
            arguments = self.read(path), annotated or label_size, spelled(Path(path))
            if self.draft is None:
                image = self.decode(*arguments)
                size = image.shape[1::-1]
            else:
                image, size = decode_draft(*arguments, self.draft)
        else:
            size = image.shape[1::-1]
        width, height = size
        if 0 in (width, height):
            raise BadImageError(NO_PIXELS)
        for kind, size in ((OTHER_SIZE, annotated), (LABELS_OF_OTHER_SIZE, label_size)):
            if size not in (None, (width, height)):
                raise BadImageError(kind, f'{width}x{height} pixels instead of {size[0]}x{size[1]}')
        if label_size is not None and 'img_path' in results:
            require_same_place(results['seg_map_path'], results['img_path'], (height, width))
        results['img'] = image.astype(np.float32) if self.to_float32 else image
        results['img_shape'] = results['ori_shape'] = (height, width)
        return results

    def read(self, path: str, missing: str = MISSING) -> bytes:
        """Return the bytes of a regular file, or raise a BadImageError of the kind ``missing``."""
        try:
            if self.backend_args is None and '://' not in str(path):
                return read_regular(spelled(Path(path)), MAX_BYTES)
            return fileio.get(path, backend_args=self.backend_args)
        except OSError as error:
            raise BadImageError(missing, error.strerror or type(error).__name__) from None

    def decode(
        self, data: bytes, annotated: Size | None = None, path: Path | None = None
    ) -> np.ndarray:
        """Decode an image file; see :func:`decode`."""
        return decode(data, annotated, path)

    def picture(self, image: np.ndarray) -> np.ndarray:
        """Return a decoded image as an RGB picture, (H, W, 3) uint8."""
        return np.ascontiguousarray(image[..., ::-1])

    def _check_labels(self, results: dict) -> Size | None:
        path = results.get('seg_map_path')
        if path is None or Path(path).suffix.lower() not in LABEL_SUFFIXES:
            return None
        data = self.read(path, LABELS_MISSING)
        try:
            _check_end(data)
            return label_size(data, spelled(Path(path)))
        except Exception:  # the decoders of Pillow raise many kinds
            raise BadImageError(LABELS_UNREADABLE) from None


def require_same_place(labels: str, image: str, size: Size) -> None:
    """Refuse labels whose place on the map differs from the place of their image, both (H, W).

    Raises:
        BadImageError: If their places on the map differ.
        UserError: If a file next to one of them that names its place cannot be read.
    """
    of_labels = place_of_file(spelled(Path(labels)))
    of_image = NOWHERE if of_labels == NOWHERE else place_of_file(spelled(Path(image)))
    if not are_laid_by_pixels(of_labels, size, of_image, size):
        detail = elsewhere(labels, of_labels, size, image, of_image, size)
        raise BadImageError(LABELS_ELSEWHERE, detail)


def image_loader(dataset: Any) -> LoadImage:
    """Return the loader in the pipeline of a dataset, or of the first that it wraps or joins."""
    inner = getattr(dataset, 'datasets', None) or [getattr(dataset, 'dataset', None)]
    if inner[0] is not None:
        return image_loader(inner[0])
    transforms = getattr(getattr(dataset, 'pipeline', None), 'transforms', ())
    loaders = (getattr(t, 'loader', t) for t in transforms)  # OpenImage has one
    return next((t for t in loaders if isinstance(t, LoadImage)), LoadImage())


def decode_draft(
    data: bytes, annotated: Size | None, path: Path | None, draft: Size
) -> tuple[np.ndarray, Size]:
    """Decode an image file as :func:`decode`, but a JPEG file not larger than it is needed.

    ``draft`` has the sides (long, short) in pixels of the box that the image is resized into.

    Returns:
        The image, and the size of the whole image.
    """
    if data.startswith(JPEG):
        with suppress(Exception):  # decode says what is wrong with a file
            size = size_of(io.BytesIO(data), annotated, path)
            # Resizing into the box multiplies the sides by this number.
            factor = min(max(draft) / max(size), min(draft) / min(size))
            divisor = max((d for d in REDUCED if d * factor <= 1), default=1)
            return decode(data, annotated, path, divisor), size
    image = decode(data, annotated, path)
    return image, image.shape[1::-1]


def decode(
    data: bytes, annotated: Size | None = None, path: Path | None = None, divisor: int = 1
) -> np.ndarray:
    """Decode an image file to BGR of shape (H, W, 3), uint8, or raise a BadImageError.

    The sides of a JPEG file are divided by a ``divisor`` of 1, 2, 4 or 8, and rounded up.

    The EXIF orientation is ignored if only the image as stored has the ``annotated`` size, or if
    files next to its ``path`` place it on the map.

    Raises:
        UserError: If a file next to it that names its place cannot be read.
    """
    if not data:
        raise BadImageError(EMPTY)
    if data.startswith(TIFF):
        image, orientation = _decode_tiff(data)
        image = image[..., ::-1]
    else:
        _check_end(data)
        image, orientation = _decode(data, divisor), 1
        with suppress(Exception):  # Pillow may not know a format that OpenCV reads
            size, orientation = _header(io.BytesIO(data))
    size = image.shape[1::-1] if divisor == 1 else size
    orientation = shown_orientation(orientation, path)
    turned = upright(image, orientation)
    is_as_stored = annotated == size != (size[::-1] if orientation > 4 else size)
    return np.ascontiguousarray(image if is_as_stored else turned)


def _decode_tiff(data: bytes) -> tuple[np.ndarray, int]:
    """Return the stored pixels of a TIFF file as RGB, uint8, and its orientation."""
    try:
        with opened_tiff(data) as (file, tags):
            bands = color_bands('it', file, tags)
            if problem := not_rgb(bands.channels, bands.dtype):
                raise BadImageError(UNREADABLE, f'it {problem}')
            image = bands.image(read_bands(file, bands.numbers[:3]))
    except UserError as error:
        raise BadImageError(UNREADABLE, str(error)) from None
    return to_rgb_8_bits(image, bands.max_value), tags.orientation


def _decode(data: bytes, divisor: int) -> np.ndarray:
    """Return the stored pixels of a file that is not a TIFF file as BGR, uint8."""
    # OpenCV changes the transparent colors of GIF files.
    image = None if data.startswith(GIF) else _by_opencv(data, divisor)
    if image is not None:
        return image
    try:
        with opened(data) as image:
            return np.asarray(image.convert('RGB'))[..., ::-1]
    except Exception:  # the decoders of Pillow raise many kinds
        has_no_end = any(data.startswith(start) and not data.endswith(end) for start, end in ENDS)
        raise BadImageError(CUT_OFF if has_no_end else UNREADABLE) from None


def _by_opencv(data: bytes, divisor: int) -> np.ndarray | None:
    level = set_log_level(SILENT)  # _decode raises an error instead
    try:
        flags = REDUCED.get(divisor, cv2.IMREAD_COLOR) | cv2.IMREAD_IGNORE_ORIENTATION
        return cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:  # more pixels than OpenCV allows
        return None
    finally:
        set_log_level(level)


def size_of(file: BinaryIO, annotated: Size | None = None, path: Path | None = None) -> Size:
    """Return the size of the image that :func:`decode` makes of a file, from its header."""
    if _start(file) in TIFF:
        with opened_tiff(file.read()) as (tiff, tags):
            size, orientation = (tiff.width, tiff.height), tags.orientation
    else:
        size, orientation = _header(file)
    is_transposed = orientation > 4 and annotated != size
    return size[::-1] if is_transposed and shown_orientation(orientation, path) > 4 else size


def label_size(data: bytes, path: Path) -> Size:
    """Return the size of a label image; its orientation is followed only if it is a TIFF file."""
    file = io.BytesIO(data)
    return size_of(file, path=path) if data.startswith(TIFF) else _header(file)[0]


def _header(file: BinaryIO) -> tuple[Size, int]:
    """Return the size of an image as it is stored, and its EXIF orientation, 1 to 8."""
    with OPENERS.get(_start(file), Image.open)(file) as image:
        # PngImageFile.getexif decodes all pixels.
        orientation = Image.Image.getexif(image).get(EXIF_ORIENTATION)
        return image.size, orientation if orientation in range(1, 9) else 1


def _start(file: BinaryIO) -> bytes:
    """Return the first two bytes of a file, and go back to them."""
    start = file.read(2)
    file.seek(0)
    return start


def not_rgb(channels: int, dtype: np.dtype) -> str | None:
    """Return why an image cannot be gray or RGB, as the end of a sentence, or None if it can."""
    if channels == 2:
        return 'has 2 channels, but the model needs 3: convert it'
    if dtype not in DTYPES:
        return (
            f'has values of type {dtype}, but the model needs uint8 or uint16: convert it, or name '
            'the values that become 0 and 255 with --stream --range LOW,HIGH'
        )
    return None


def rgb_notes(name: str, channels: int, max_value: int) -> list[str]:
    """Return a sentence on each change that turns the image ``name`` into RGB of 8 bits."""
    notes = []
    if max_value != MAX_8_BITS:
        notes.append(
            f'{name}: its values from 0 to {max_value} are scaled to 0 to {MAX_8_BITS}, the range '
            'of the training images; --stream --range LOW,HIGH scales other values'
        )
    if channels > 3:
        notes.append(f'{name}: the first 3 of its {channels} channels are used')
    return notes


def to_rgb_8_bits(image: np.ndarray, max_value: int) -> np.ndarray:
    """Return a gray image (H, W, 1), or the first three channels of an image, as RGB, uint8.

    Only the upper 8 bits of values are kept, as when OpenCV decodes PNG files. ``max_value`` tells
    how many bits the values have.
    """
    image = image[..., :3] if image.shape[2] >= 3 else image.repeat(3, axis=2)
    bits = max_value.bit_length()
    if bits > 8:
        return (image >> (bits - 8)).clip(0, 255).astype(np.uint8)
    return image if bits == 8 else (image * (255 / max_value)).round().clip(0, 255).astype(np.uint8)


def rgb_of(image: np.ndarray) -> np.ndarray:
    """Return a new array with an image as RGB of shape (H, W, 3), uint8.

    :func:`decode` reads the same values from a PNG file of the image.

    Args:
        image: Gray (H, W) or (H, W, 1), RGB (H, W, 3), or RGB with opacity (H, W, 4), uint8 or
            uint16. Of 16 bits, the upper 8 remain. The opacity is ignored.

    Raises:
        ArgumentError: If it is not such an array.
    """
    shape, dtype = getattr(image, 'shape', ()), getattr(image, 'dtype', type(image).__name__)
    is_gray = len(shape) == 2 or shape[2:] == (1,)
    has_channels = is_gray or (len(shape) == 3 and shape[2] in (3, 4))
    if not has_channels or 0 in shape or dtype not in DTYPES:
        raise ArgumentError(
            'an image is a path, an image of PIL, or an array of type uint8 or uint16 and of shape '
            f'(H, W), (H, W, 1), (H, W, 3) or (H, W, 4), not {shape} of {dtype}'
        )
    return np.array(to_rgb_8_bits(image.reshape(*shape[:2], -1), np.iinfo(dtype).max), order='C')


@contextmanager
def opened(data: bytes, formats: Sequence[str] | None = None) -> Iterator[Image.Image]:
    """Open the bytes of an image with Pillow, in one of its ``formats``, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        with Image.open(io.BytesIO(data), formats=formats) as image:
            yield image


def _check_end(data: bytes) -> None:
    """Refuse truncated files; only those that do not end as usual are decoded to find out."""
    if any(data.startswith(start) and data.endswith(end) for start, end in ENDS):
        return
    try:
        with opened(data) as image:
            image.load()
    except Exception as error:  # the decoders of Pillow raise many kinds
        if 'truncated' in str(error).lower():
            raise BadImageError(CUT_OFF) from None
