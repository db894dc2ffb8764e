"""TIFF images with any number of bands, for example from satellites."""

from pathlib import Path

import numpy as np
from mmengine.registry import TRANSFORMS

from ...base.errors import UserError
from ..tiff.file_headers import TIFF
from ..tiff.places import shown_orientation
from ..tiff.tiff_bands import opened_tiff, page_names, read_bands, read_pages, upright
from .decode import EMPTY, UNREADABLE, BadImageError, LoadImage, Size

OTHER_BANDS = 'its number of bands differs from the config'
NOT_REAL = 'its pixels are not real numbers'
NOT_FINITE = 'it has pixels that are NaN or infinite'

MAX_SAMPLED = 512  # rows and columns in which the range of a picture is measured


@TRANSFORMS.register_module()
class LoadMultiband(LoadImage):
    """Load a TIFF image of any number of bands and any real type as float32.

    The bands are interleaved, planar or the pages of the file, and keep their order and values.
    Overviews are ignored. Like :class:`~.decode.LoadImage`, it reads ``img_path`` or the
    decoded ``img``, and checks the size of images and labels. Sets ``img``, of shape (H, W,
    ``channels``), and ``img_shape`` and ``ori_shape``, both (H, W).

    Args:
        channels: Number of bands.
        nan: Number that replaces NaN, the usual mark of pixels without data. Default: an image
            with NaN is an error.
        rgb: The bands, from 0, that pictures show as red, green and blue. Default: the first
            three, or the first one in gray if there are fewer.

    Raises:
        BadImageError: If the image or its label image is missing or damaged, differs in size
            from its annotation, has the wrong number of bands, or has values that are not finite.
    """

    def __init__(
        self,
        channels: int,
        nan: float | None = None,
        rgb: tuple[int, int, int] | None = None,
    ) -> None:
        super().__init__()
        rgb = ((0, 1, 2) if channels > 2 else (0, 0, 0)) if rgb is None else tuple(rgb)
        self.channels, self.nan, self.rgb = channels, nan, rgb

    def decode(
        self, data: bytes, annotated: Size | None = None, path: Path | None = None
    ) -> np.ndarray:
        """Decode a TIFF file to (H, W, ``channels``), float32, or raise a BadImageError."""
        if not data:
            raise BadImageError(EMPTY)
        if not data.startswith(TIFF):
            detail = f'not a TIFF file, but images of {self.channels} bands are TIFF files'
            raise BadImageError(UNREADABLE, detail)
        return self.bands(self._read_bands(data, path))

    def bands(self, image: np.ndarray, valid: np.ndarray | None = None) -> np.ndarray:
        """Return an image (H, W, ``channels``) of any real type as float32, or refuse it.

        Pixels without data become 0: ``valid`` (H, W) is False there.
        """
        self._require_bands(image.shape)
        if image.dtype.kind not in 'biuf':
            raise BadImageError(NOT_REAL, f'{image.dtype}')
        with np.errstate(over='ignore'):  # larger numbers become infinite
            image = np.ascontiguousarray(image, np.float32)
        if valid is not None:
            image = np.where(valid[..., None], image, np.float32(0))
        if self.nan is not None:
            image = np.where(np.isnan(image), np.float32(self.nan), image)
        if not np.isfinite(image).all():
            raise BadImageError(NOT_FINITE, 'nan=NUMBER of LoadMultiband replaces NaN')
        return image

    def picture(self, image: np.ndarray) -> np.ndarray:
        """Return three bands as RGB, each scaled from its 2nd to its 98th percentile."""
        image = image[..., list(self.rgb)]
        step = 1 + max(image.shape[:2]) // MAX_SAMPLED
        low, high = np.percentile(image[::step, ::step], (2, 98), axis=(0, 1))
        shares = (image - low) / np.maximum(high - low, np.finfo(np.float32).tiny)
        return (255 * shares.clip(0, 1)).astype(np.uint8)

    def _require_bands(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 3 or shape[2] != self.channels:
            bands = shape[2] if len(shape) == 3 else f'shape {shape}'
            expected = f'channels={self.channels}, in the last place of (H, W, bands)'
            raise BadImageError(OTHER_BANDS, f'{bands} instead of {expected}')

    def _read_bands(self, data: bytes, path: Path | None) -> np.ndarray:
        try:
            with opened_tiff(data) as (file, tags):
                pages, orientation = page_names(file), shown_orientation(tags.orientation, path)
                if len(pages) < 2:
                    self._require_bands((file.height, file.width, file.count))
                    image = np.moveaxis(read_bands(file, file.indexes), 0, -1)
                    return upright(image, orientation)
                shape = len(pages), file.height, file.width
                # If tifffile.imwrite was not told the meaning of (H, W, bands), there are H pages.
                is_last = self.channels == shape[2] != shape[0]
                self._require_bands(shape if is_last else (*shape[1:], shape[0]))
                image = read_pages(file, pages)
        except UserError as error:
            raise BadImageError(UNREADABLE, str(error)) from None
        return image if is_last else upright(np.moveaxis(image, 0, -1), orientation)
