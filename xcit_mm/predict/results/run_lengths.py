"""Run lengths of masks, as COCO's files hold them."""

from typing import Any

import cv2
import numpy as np
from pycocotools import mask as coco_mask

from ...base.geometry import Window


def run_lengths(mask: np.ndarray) -> dict[str, Any]:
    """Return the run lengths of a mask (H, W) of bool, as pycocotools encodes it."""
    # pycocotools reads columns; OpenCV transposes several times as fast as NumPy copies.
    return coco_mask.encode(cv2.transpose(mask.view(np.uint8)).T)


def run_lengths_in(window: Window, mask: np.ndarray, size: tuple[int, int]) -> dict[str, Any]:
    """Return the COCO run lengths of a mask in a window of an image (H, W), column by column."""
    height, width = size
    columns = np.zeros((mask.shape[1], mask.shape[0] + 2), np.int8)
    columns[:, 1:-1] = mask.T
    column, row = np.nonzero(np.diff(columns, axis=1))  # the starts and ends of runs alternate
    places = (column + window.columns.start) * height + row + window.rows.start
    counts = np.diff(np.concatenate([[0], places, [height * width]]))
    rle = dict(size=[height, width], counts=counts.tolist())
    return coco_mask.frPyObjects(rle, height, width)
