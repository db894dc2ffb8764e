"""Pictures that visitors send: read if they are some, and no larger than a page needs."""

from pathlib import Path

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

from ..datasets.images import UNREADABLE, BadImageError, decode
from ..errors import UserError

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
        _require_moderate(path, max_upload)
        image = decode(Path(path).read_bytes())
    except BadImageError as error:
        raise UserError(
            f'{Path(path).name} cannot be used: {error}; take another picture'
        ) from None
    shrink = MAX_SIDE / max(image.shape[:2])
    if shrink < 1:
        width, height = (max(round(side * shrink), 1) for side in image.shape[1::-1])
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    return np.ascontiguousarray(image[..., ::-1])


def _require_moderate(path: str, max_upload: float) -> None:
    """By the file's size and its head: a small one can hold an image that takes all memory."""
    if Path(path).stat().st_size > max_upload * 2**20:
        raise BadImageError(f'it has more than {max_upload:g} MB')
    try:
        Image.open(path).close()
    except Image.DecompressionBombError:
        limit = 2 * Image.MAX_IMAGE_PIXELS / 1e6
        raise BadImageError(f'it has more than {limit:.0f} million pixels') from None
    except UnidentifiedImageError:
        raise BadImageError(UNREADABLE) from None
