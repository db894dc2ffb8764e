"""The tissue on a stained slide."""

import cv2
import numpy as np

from ...base.errors import UserError
from ..files.image_source import ImageSource
from .masks import Stretched

PICTURE_SIDE = 2048  # pixels of the longer side of the picture in which tissue is found
SMALLEST = 1e-4  # share of that picture; smaller spots are dust
GAP = 7  # pixels; gaps in tissue that are narrower are filled
MIN_SATURATION = 10  # of 255; smallest saturation that separates tissue from glass


def tissue_of(image: ImageSource, small: np.ndarray) -> Stretched:
    """Find the tissue of a stained slide in a reduced picture of it, RGB (h, w, 3) uint8.

    Stained tissue is colored, and glass is gray or white. Otsu's threshold of the saturation
    separates them.

    Raises:
        UserError: If there is no tissue.
    """
    saturation = cv2.cvtColor(cv2.medianBlur(small, 5), cv2.COLOR_RGB2HSV)[..., 1]
    _, mask = cv2.threshold(saturation, 0, 255, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    mask = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, np.ones((GAP, GAP), np.uint8))
    _, labels, stats, _ = cv2.connectedComponentsWithStats(mask)
    is_large = stats[:, cv2.CC_STAT_AREA] >= SMALLEST * mask.size
    is_large[0] = False  # the glass
    is_tissue = is_large[labels]
    # Otsu's threshold divides any picture, also one of glass only.
    if (
        not is_tissue.any()
        or saturation[is_tissue].mean() - saturation[~is_tissue].mean() < MIN_SATURATION
    ):
        raise UserError(
            f'{image.name} has no tissue that differs from the glass in color: name a mask instead '
            '(--mask FILE)'
        )
    return Stretched(is_tissue, image.shape[:2])
