"""Pictures that visitors send: read if they are some, and no larger than a page needs."""

from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from ..datasets.images import CUT_OFF, UNREADABLE, BadImageError, opened
from ..errors import UserError
from ..inference.reading import to_rgb

# Those that a browser sends, and Pillow reads by itself, without a program such as Ghostscript.
FORMATS = ('BMP', 'GIF', 'JPEG', 'PNG', 'TIFF', 'WEBP')
MAX_SIDE = 2048  # pixels; models of our configs see no more of a picture, and a browser is quick


def read_picture(path: str, max_upload: float) -> np.ndarray:
    """Read what was uploaded.

    Args:
        path: The file.
        max_upload: Its largest size, in MB of 2**20 bytes.

    Returns:
        RGB, (H, W, 3) uint8, shrunk to at most ``MAX_SIDE`` pixels a side.

    Raises:
        UserError: If it is no picture, or one of more bytes than that, or of more pixels than
            Pillow takes for an attack.
    """
    try:
        image = _decode(Path(path), max_upload)
    except BadImageError as error:
        raise UserError(
            f'{Path(path).name} cannot be used: {error}; take another picture'
        ) from None
    shrink = MAX_SIDE / max(image.shape[:2])
    if shrink < 1:
        width, height = (max(round(side * shrink), 1) for side in image.shape[1::-1])
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    return image


def _decode(path: Path, max_upload: float) -> np.ndarray:
    """A small file can hold an image that takes all memory, and look small to another library.

    So it is Pillow that decodes what Pillow has measured: OpenCV takes the first of two widths
    that a TIFF has, Pillow the last.
    """
    if path.stat().st_size > max_upload * 2**20:
        raise BadImageError(f'it has more than {max_upload:g} MB')
    try:
        with opened(path.read_bytes(), FORMATS) as image:
            return to_rgb(image)
    except Image.DecompressionBombError:
        limit = 2 * Image.MAX_IMAGE_PIXELS / 1e6
        raise BadImageError(f'it has more than {limit:.0f} million pixels') from None
    except Exception as error:  # of PIL's many decoders
        raise BadImageError(CUT_OFF if 'truncated' in str(error) else UNREADABLE) from None
