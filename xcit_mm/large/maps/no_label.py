"""The label of pixels that have no class, such as pixels without data."""

import numpy as np
import torch


def no_label(dtype: np.dtype | torch.dtype) -> int:
    """Return the label in an array or tensor of labels: 255 for uint8, otherwise -1."""
    return 255 if dtype in (np.uint8, torch.uint8) else -1
