"""Images of any mode as 8-bit BGR, and what is wrong with an image that cannot be read."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from mmengine import fileio
from mmengine.registry import TRANSFORMS
from PIL import Image

from ..errors import ArgumentError
from ..file_headers import TIFF
from ..files import read_regular

# What makes an image unusable.
MISSING = 'it is missing or cannot be opened'
EMPTY = 'it is empty'
UNREADABLE = 'it is not a readable image'
CUT_OFF = 'it is cut off'
NO_PIXELS = 'one of its sides has no pixels'
OTHER_SIZE = 'it is not of the annotated size'
LABELS_MISSING = 'its label file is missing or cannot be opened'
LABELS_UNREADABLE = 'its label file cannot be read'
LABELS_TOO_LARGE = 'its label file has values that mmsegmentation would cut to 8 bits'
LABELS_OF_OTHER_SIZE = 'it is not of the size of its labels'
NO_LABELS = 'none of its pixels has a label'

# The first and last bytes of a file. OpenCV before 4.11 shows the rest of a cut file in gray.
ENDS = ((b'\xff\xd8', b'\xff\xd9'), (b'\x89PNG', b'IEND\xaeB`\x82'))
EXIF_ORIENTATION = 0x0112
MAX_BYTES = 2**31 - 1  # of an image file, the limit of OpenCV
SILENT = 0  # a log level of OpenCV
# OpenCV 5 moved it.
set_log_level = cv2.setLogLevel if hasattr(cv2, 'setLogLevel') else cv2.utils.logging.setLogLevel
NOT_RGB = 'a TIFF file that is damaged, or has other bands than RGB (see docs/multiband.md)'
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
        backend_args: Arguments of mmengine's file backend for data that is not in local files.

    Raises:
        BadImageError: If the image or its label image is missing or damaged, or has another size
            than annotated.
    """

    def __init__(self, to_float32: bool = False, backend_args: dict | None = None) -> None:
        self.to_float32 = to_float32
        self.backend_args = backend_args

    def __call__(self, results: dict) -> dict:
        annotated = results.get('width'), results.get('height')
        annotated = None if None in annotated else annotated
        label_size = self._check_labels(results)
        image = results.get('img')
        if image is None:
            image = self.decode(self.read(results['img_path']), annotated or label_size)
        height, width = image.shape[:2]
        if 0 in (width, height):
            raise BadImageError(NO_PIXELS)
        for kind, size in ((OTHER_SIZE, annotated), (LABELS_OF_OTHER_SIZE, label_size)):
            if size not in (None, (width, height)):
                raise BadImageError(kind, f'{width}x{height} pixels instead of {size[0]}x{size[1]}')
        results['img'] = image.astype(np.float32) if self.to_float32 else image
        results['img_shape'] = results['ori_shape'] = (height, width)
        return results

    def read(self, path: str, missing: str = MISSING) -> bytes:
        """Return the bytes of a regular file, or raise a BadImageError of the kind ``missing``."""
        try:
            if self.backend_args is None and '://' not in str(path):
                return read_regular(Path(path), MAX_BYTES)
            return fileio.get(path, backend_args=self.backend_args)
        except OSError as error:
            raise BadImageError(missing, error.strerror or type(error).__name__) from None

    def decode(self, data: bytes, annotated: Size | None = None) -> np.ndarray:
        """Decode an image file; see :func:`decode`."""
        return decode(data, annotated)

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
            with opened(data) as image:
                size = image.size
                is_cut = image.mode[0] in 'IF' and 'reduce_zero_label' in results  # in mmseg only
                largest = np.asarray(image).max() if is_cut else 0
        except Exception:  # the decoders of Pillow raise many kinds
            raise BadImageError(LABELS_UNREADABLE) from None
        if largest > 255:
            raise BadImageError(LABELS_TOO_LARGE, f'{largest}')
        return size


def image_loader(dataset: Any) -> LoadImage:
    """Return the loader in the pipeline of a dataset, or of the first that it wraps or joins."""
    inner = getattr(dataset, 'datasets', None) or [getattr(dataset, 'dataset', None)]
    if inner[0] is not None:
        return image_loader(inner[0])
    transforms = getattr(getattr(dataset, 'pipeline', None), 'transforms', ())
    loaders = (getattr(t, 'loader', t) for t in transforms)  # OpenImage has one
    return next((t for t in loaders if isinstance(t, LoadImage)), LoadImage())


def decode(data: bytes, annotated: Size | None = None) -> np.ndarray:
    """Decode an image file to BGR of shape (H, W, 3), uint8, or raise a BadImageError.

    The EXIF orientation is ignored if only the image as stored has the ``annotated`` size.
    """
    if not data:
        raise BadImageError(EMPTY)
    _check_end(data)
    level = set_log_level(SILENT)  # the error below says what OpenCV would log
    try:
        encoded = np.frombuffer(data, np.uint8)
        image = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
        if image is not None and annotated == image.shape[:2] != image.shape[1::-1]:
            as_stored = cv2.imdecode(encoded, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
            image = as_stored if as_stored.shape[1::-1] == annotated else image
        if image is not None:
            return image
    except cv2.error:  # more pixels than OpenCV allows
        pass
    finally:
        set_log_level(level)
    try:
        with opened(data) as image:
            return np.ascontiguousarray(np.asarray(image.convert('RGB'))[..., ::-1])
    except Exception:  # the decoders of Pillow raise many kinds
        has_no_end = any(data.startswith(start) and not data.endswith(end) for start, end in ENDS)
        kind = CUT_OFF if has_no_end else UNREADABLE
        raise BadImageError(kind, NOT_RGB if data.startswith(TIFF) else '') from None


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
    if dtype != np.uint8:
        image = (image >> 8).astype(np.uint8)
    channels = [0, 0, 0] if is_gray else slice(3)
    return np.array(image.reshape(*shape[:2], -1)[..., channels], order='C')


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
