"""The PNG files of COCO's panoptic format: the segment of each pixel, 0 without one."""

import numpy as np

from ..transforms.decode import LABELS_MISSING, LABELS_UNREADABLE, BadImageError, LoadImage, opened


def segment_ids(path: str, backend_args: dict | None = None) -> np.ndarray:
    """Read the PNG of an image: (H, W) int32, the id red + 256 green + 65536 blue.

    Raises:
        BadImageError: If it is missing or damaged.
    """
    try:
        with opened(LoadImage(backend_args=backend_args).read(path, LABELS_MISSING)) as image:
            return np.asarray(image.convert('RGB')) @ np.array((1, 2**8, 2**16), np.int32)
    except BadImageError:
        raise
    except Exception:  # the decoders of Pillow raise many kinds
        raise BadImageError(LABELS_UNREADABLE) from None
