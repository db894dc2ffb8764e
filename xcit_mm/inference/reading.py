"""Images from wherever they are, as RGB."""

from http.client import HTTPException, InvalidURL
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
from PIL import Image, ImageOps

from ..datasets.images import BadImageError, decode
from ..download import is_url
from ..errors import ArgumentError, UserError, reason
from ..fetch import TIMEOUT


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
        return np.array(ImageOps.exif_transpose(image).convert('RGB'))
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


def _read(path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except FileNotFoundError:
        raise UserError(f'{path} does not exist (looked in {Path.cwd()})') from None
    except OSError as error:
        raise UserError(f'{path} cannot be opened ({reason(error)})') from None


def _fetch(url: str) -> bytes:
    try:
        with urlopen(Request(url, headers={'User-Agent': 'xcit_mm'}), timeout=TIMEOUT) as response:
            return response.read()
    except HTTPError as error:
        raise UserError(
            f'{url}: the server answers {error.code} {error.reason}; is the address right?'
        ) from None
    except (InvalidURL, ValueError) as error:
        raise UserError(f'{url} is no web address ({error})') from None
    except (URLError, TimeoutError) as error:
        cause = getattr(error, 'reason', error)
        raise UserError(
            f'{url} cannot be reached ({cause}); fetch it on another machine and name the file'
        ) from None
    except (HTTPException, ConnectionError) as error:
        raise UserError(f'{url}: the connection broke off ({reason(error)}); try again') from None
