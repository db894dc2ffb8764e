"""Heights, or other numbers for each pixel, from the first band of a raster file."""

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import numpy as np
from mmengine.registry import TRANSFORMS

from ...base.errors import UserError
from ..tiff.tiff_bands import opened_tiff
from .decode import (
    LABELS_MISSING,
    LABELS_OF_OTHER_SIZE,
    LABELS_UNREADABLE,
    NO_LABELS,
    BadImageError,
    LoadImage,
    Size,
    require_same_place,
)

Heights = TypeVar('Heights')  # an array of NumPy or a tensor


@TRANSFORMS.register_module()
class LoadHeights:
    """Load the heights of an image from the first band of a TIFF file, of any real type.

    Pixels that the file marks as missing, by its no-data value, a mask or NaN, have no label. They
    become NaN, which losses and metrics ignore. The scale and the offset that a file names are
    applied. Reads ``depth_map_path``, after the image has been loaded. Sets ``gt_depth_map``,
    (H, W) float32, and ``seg_map_path``, which messages name.

    Args:
        nodata: A further value of pixels without a label, for files that do not name theirs.
        backend_args: Arguments of mmengine's file backend for data that is not in local files.

    Raises:
        BadImageError: If the file is missing or damaged, has another size than the image or lies
            elsewhere on the map, or has no pixel with a label.
    """

    def __init__(self, nodata: float | None = None, backend_args: dict | None = None) -> None:
        self.nodata = nodata
        self._files = LoadImage(backend_args=backend_args)

    def __call__(self, results: dict) -> dict:
        path = results['depth_map_path']
        data = self._files.read(path, LABELS_MISSING)
        height, width = results['ori_shape']
        results['gt_depth_map'] = decode_heights(data, (width, height), self.nodata)
        if 'img_path' in results:
            require_same_place(path, results['img_path'], (height, width))
        results.setdefault('seg_fields', []).append('gt_depth_map')
        results['seg_map_path'] = path
        return results


def decode_heights(data: bytes, size: Size, nodata: float | None = None) -> np.ndarray:
    """Decode a TIFF file to heights (H, W), float32, with NaN where there is no label.

    Raises:
        BadImageError: See :class:`LoadHeights`.
    """
    try:
        with opened_tiff(data) as (file, _):
            if (file.width, file.height) != size:
                sizes = f'{size[0]}x{size[1]} pixels instead of {file.width}x{file.height}'
                raise BadImageError(LABELS_OF_OTHER_SIZE, sizes)
            values = file.read(1, masked=True)
            scale, offset = file.scales[0], file.offsets[0]
    except UserError as error:
        raise BadImageError(LABELS_UNREADABLE, str(error)) from None
    is_missing = np.ma.getmaskarray(values) | (values.data == nodata)
    heights = (values.data * scale + offset).astype(np.float32)
    heights[is_missing] = np.nan
    if np.isnan(heights).all():
        raise BadImageError(NO_LABELS)
    return heights


class HeightRule(NamedTuple):
    """Whether heights have to be positive, as for the logarithms of a loss."""

    positive: bool

    @classmethod
    def of_losses(cls, names: Iterable[str]) -> 'HeightRule':
        return cls('LabeledSiLogLoss' in names)

    def broken_by(self, heights: Heights) -> Heights:
        """Return the heights that are not positive but have to be, in one dimension."""
        return heights[(heights <= 0) & self.positive]

    def refusal(self, height: float, file: str) -> str:
        """Return the sentence that refuses a height of a file."""
        return (
            f'{file}: the height {height:g} has no logarithm, which LabeledSiLogLoss needs: use '
            'LabeledL1Loss, or mark such pixels as missing'
        )
