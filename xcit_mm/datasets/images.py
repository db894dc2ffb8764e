"""Images as they come: what can be converted is, what is bad is said in a word.

Read are grayscale, palettes, alpha, CMYK and 16 bits as 8-bit BGR; EXIF's rotation is followed,
except where the annotations are of the image as it is stored.
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
from mmengine import fileio
from mmengine.registry import TRANSFORMS
from PIL import Image, UnidentifiedImageError

from ..files import read_regular

# What is bad about an image.
MISSING = 'it is missing or cannot be opened'
EMPTY = 'it is empty'
UNREADABLE = 'it is no image that can be read'
CUT_OFF = 'it is cut off'
NO_PIXELS = 'it has a side of no pixels'
OTHER_SIZE = 'it is not of the annotated size'
LABELS_MISSING = 'its label file is missing or cannot be opened'
LABELS_UNREADABLE = 'its label file cannot be read'
LABELS_TOO_LARGE = 'its label file has values that mmsegmentation would cut to 8 bits'
LABELS_OF_OTHER_SIZE = 'it is not of the size of its labels'

# What is converted.
GRAYSCALE = 'grayscale'
PALETTE = 'palette'
ALPHA = 'alpha'
CMYK = 'CMYK'
SIXTEEN_BITS = '16 bits'
ROTATED = 'EXIF rotation'

# How a file begins and ends. OpenCV before 4.11 reads one that is cut off, with a grey rest.
WHOLE = ((b'\xff\xd8', b'\xff\xd9'), (b'\x89PNG', b'IEND\xaeB`\x82'))
AS_STORED = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
EXIF_ORIENTATION = 0x0112
TIFF_BITS = 258
PNG_BITS = 24  # the byte that says how many

MAX_BYTES = 2**31 - 1  # of an image file, as of OpenCV
LABEL_IMAGES = ('.png', '.bmp', '.gif', '.jpg', '.jpeg', '.tif', '.tiff')
BLACK = 'black'  # in what a transform is given: for a black image in the place of a bad one

Size = tuple[int, int]  # width and height in pixels


class BadImageError(Exception):
    """An image that a model cannot learn from; the message is the reason, without the path.

    Args:
        kind: One of the reasons of this module.
        detail: What is particular about this image.
    """

    def __init__(self, kind: str, detail: str = '') -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail

    def __str__(self) -> str:
        return f'{self.kind}: {self.detail}' if self.detail else self.kind


@TRANSFORMS.register_module()
class LoadImage:
    """mmcv's ``LoadImageFromFile``, which gives the same for an image that is whole.

    Takes ``img_path`` or, already decoded, ``img``, or ``black`` for a black image of the
    annotated size; if they are there, ``width`` and ``height`` as annotated and
    ``seg_map_path``. Gives ``img``, BGR (H, W, 3), ``img_shape`` and
    ``ori_shape``, both (H, W).

    Args:
        to_float32: Give float32 instead of uint8.
        backend_args: Of mmengine's file backend, where the data is not in files.

    Raises:
        BadImageError: If the image is missing, not whole, or not of the size of its annotations,
            whose places would be wrong.
    """

    def __init__(self, to_float32: bool = False, backend_args: dict | None = None) -> None:
        self.to_float32 = to_float32
        self.backend_args = backend_args

    def __call__(self, results: dict) -> dict:
        annotated = results.get('width'), results.get('height')
        annotated = None if None in annotated else annotated
        labels = results.get('seg_map_path')
        is_image = labels is not None and Path(labels).suffix.lower() in LABEL_IMAGES
        are_cut = 'reduce_zero_label' in results  # of mmseg
        label_size = self._label_size(labels, are_cut) if is_image else None

        image = results.get('img')
        if results.get(BLACK):
            image = np.zeros((*(annotated or label_size)[::-1], 3), np.uint8)
        elif image is None:
            image = decode(self.read(results['img_path']), annotated or label_size)
        height, width = image.shape[:2]
        if 0 in (width, height):
            raise BadImageError(NO_PIXELS)
        for kind, size in ((OTHER_SIZE, annotated), (LABELS_OF_OTHER_SIZE, label_size)):
            if size not in (None, (width, height)):
                raise BadImageError(kind, f'{width}x{height} pixels instead of {size[0]}x{size[1]}')

        results['img'] = image.astype(np.float32) if self.to_float32 else image
        results['img_shape'] = results['ori_shape'] = (height, width)
        return results

    def __repr__(self) -> str:
        return f'LoadImage(to_float32={self.to_float32}, backend_args={self.backend_args})'

    def read(self, path: str, missing: str = MISSING) -> bytes:
        """The bytes of a file.

        Raises:
            BadImageError: ``missing``, if it cannot be opened or is no regular file.
        """
        try:
            if self.backend_args is None and '://' not in str(path):
                return read_regular(Path(path), MAX_BYTES)
            return fileio.get(path, backend_args=self.backend_args)
        except OSError as error:
            raise BadImageError(missing, error.strerror or type(error).__name__) from None

    def _label_size(self, path: str, are_cut: bool) -> Size:
        data = self.read(path, LABELS_MISSING)
        try:
            _require_whole(data)
            with opened(data) as image:
                size = image.size
                is_deep = image.mode.startswith(('I', 'F'))  # of more than 8 bits
                labels = np.asarray(image) if is_deep and are_cut else np.zeros(0)
        except UnidentifiedImageError:
            raise BadImageError(LABELS_UNREADABLE) from None
        except Exception as error:  # of PIL's many decoders, or ours
            raise BadImageError(LABELS_UNREADABLE, str(error).partition('\n')[0]) from None
        other = labels[labels.astype(np.uint8) != labels]
        if other.size:
            raise BadImageError(LABELS_TOO_LARGE, f'{other[0]}')
        return size


def decode(data: bytes, annotated: Size | None = None) -> np.ndarray:
    """Decode an image file.

    Args:
        data: What is in it.
        annotated: The size that it should have: the rotation of EXIF is left out if the image
            has this size only without.

    Returns:
        BGR, (H, W, 3) uint8.

    Raises:
        BadImageError: If it is empty, cut off, or no image.
    """
    if not data:
        raise BadImageError(EMPTY)
    _require_whole(data)
    image = _decode_with_cv2(data, cv2.IMREAD_COLOR)
    if image is None:
        return _decode_with_pil(data)
    height, width = image.shape[:2]
    if annotated == (height, width) != (width, height):
        stored = _decode_with_cv2(data, AS_STORED)
        if stored.shape[1::-1] == annotated:
            return stored
    return image


def conversions(data: bytes) -> list[str]:
    """What :func:`decode` does beyond decoding, told by the head of the file.

    Returns:
        Of GRAYSCALE, PALETTE, ALPHA, CMYK, SIXTEEN_BITS and ROTATED those that apply; none for
        a format that PIL does not know.
    """
    try:
        with opened(data) as image:
            mode = image.mode
            if image.format == 'PNG':
                bits = data[PNG_BITS]
            else:
                bits = max(getattr(image, 'tag_v2', {}).get(TIFF_BITS, (8,)))
            applies = {
                GRAYSCALE: mode in ('1', 'L', 'LA', 'I', 'F') or mode.startswith('I;16'),
                PALETTE: mode in ('P', 'PA'),
                ALPHA: mode in ('LA', 'PA', 'RGBA') or 'transparency' in image.info,
                CMYK: mode == 'CMYK',
                SIXTEEN_BITS: bits == 16,
                ROTATED: image.getexif().get(EXIF_ORIENTATION, 1) in range(2, 9),
            }
    except Exception:  # of PIL's many decoders; OpenCV may read it nevertheless
        return []
    return [kind for kind, is_so in applies.items() if is_so]


def _require_whole(data: bytes) -> None:
    """Quick for a JPEG or PNG that ends as it should; PIL decodes any other one to see."""
    if any(data.startswith(start) and data.endswith(end) for start, end in WHOLE):
        return
    try:
        with opened(data) as image:
            image.load()
    except Exception as error:  # of PIL's many decoders, which may not know what OpenCV reads
        if 'truncated' in str(error).lower():
            raise BadImageError(CUT_OFF) from None


def _decode_with_cv2(data: bytes, flags: int) -> np.ndarray | None:
    try:
        return cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:  # of more pixels than OpenCV takes
        return None


def _decode_with_pil(data: bytes) -> np.ndarray:
    try:
        with opened(data) as image:
            return np.ascontiguousarray(np.asarray(image.convert('RGB'))[..., ::-1])
    except Exception:  # of PIL's many decoders
        no_end = any(data.startswith(start) and not data.endswith(end) for start, end in WHOLE)
        raise BadImageError(CUT_OFF if no_end else UNREADABLE) from None


@contextmanager
def opened(data: bytes, formats: Sequence[str] | None = None) -> Iterator[Image.Image]:
    """PIL's image, without its warnings: what is wrong is said by who asks.

    Args:
        data: What is in the file.
        formats: Those that it may have, as PIL calls them; None: any.
    """
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        with Image.open(io.BytesIO(data), formats=formats) as image:
            yield image
