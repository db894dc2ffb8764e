"""The label of pixels without data."""

import numpy as np
from numpy.typing import DTypeLike

NO_LABEL = {np.dtype(np.uint8): 255, np.dtype(np.int16): -1}


def no_label(dtype: DTypeLike) -> int:
    """Return the label of pixels without data in labels of type uint8 or int16."""
    return NO_LABEL[np.dtype(dtype)]
