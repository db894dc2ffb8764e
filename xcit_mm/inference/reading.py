"""Images from wherever they are, as RGB."""

import os
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from ..datasets.images import MAX_BYTES as MAX_FILE_BYTES
from ..datasets.images import BadImageError, decode
from ..errors import ArgumentError, UserError, reason
from ..files import read_regular
from ..http import UnreachableError, read_url
from ..weights.download import is_url

MAX_BYTES = 2**29  # of an image that is fetched


def to_rgb(image: str | Path | np.ndarray | Image.Image) -> np.ndarray:
    """Read an image, or check one that was read.

    Args:
        image: A path or http(s) URL, an RGB array (H, W, 3) uint8, or PIL's.

    Returns:
        RGB, (H, W, 3) uint8.

    Raises:
        UserError: If it cannot be read.
        ArgumentError: If it is an array of something else.
    """
    if isinstance(image, (str, Path)):
        return read_image(str(image))
    if isinstance(image, Image.Image):
        image = ImageOps.exif_transpose(image)
        if image.mode.startswith('I;16'):  # which convert() would cut off at 255
            image = Image.fromarray((np.asarray(image) // 257).astype(np.uint8))
        return np.array(image.convert('RGB'))
    if not isinstance(image, np.ndarray):
        raise ArgumentError(
            f'an image is a path, an array or an image of PIL, no {type(image).__name__}'
        )
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or 0 in image.shape:
        raise ArgumentError(
            f'an image is RGB, (H, W, 3) of uint8, but this array is {image.shape} of {image.dtype}'
        )
    return image


def read_image(source: str) -> np.ndarray:
    """Read an image file or URL.

    Returns:
        RGB, (H, W, 3) uint8.

    Raises:
        UserError: If there is none, or it cannot be read; the message says why.
    """
    data = _fetch(source) if is_url(source) else _read(source)
    try:
        return np.ascontiguousarray(decode(data)[..., ::-1])
    except BadImageError as error:
        raise UserError(f'{source}: {error}') from None


def expand_user(path: str) -> Path:
    """The path with the home folder for ~; a file may be called ~1.jpg, too."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  Path.expanduser raises for ~1.jpg


def _read(path: str) -> bytes:
    try:
        return read_regular(expand_user(path), MAX_FILE_BYTES)
    except FileNotFoundError:
        raise UserError(f'{path} does not exist (looked in {Path.cwd()})') from None
    except OSError as error:
        raise UserError(f'{path} cannot be opened ({reason(error)})') from None


def _fetch(url: str) -> bytes:
    try:
        return read_url(url, MAX_BYTES)
    except UnreachableError as error:
        raise UnreachableError(f'{error}; fetch it on another machine and name the file') from None
