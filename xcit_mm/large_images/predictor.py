"""The part of a trained model that predictions for images of any size need."""

from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from mmengine.dataset import Compose
from torch import nn

from ..datasets.multiband import LoadMultiband
from ..predictions import Detections, Segmentation


class Predictor(Protocol):
    """A trained detector or segmentor, such as the one of :func:`xcit_mm.load_model`."""

    task: str  # 'detection', 'segmentation' or 'panoptic'
    classes: tuple[str, ...]
    palette: tuple[tuple[int, int, int], ...]
    module: nn.Module  # of mmdet or mmseg
    pipeline: Compose  # of the test dataset
    bands: LoadMultiband | None  # the loader of the config, if it loads other channels than RGB
    dtype: torch.dtype  # of slices
    streamed_dtype: torch.dtype  # of an image that the model sees as a whole

    def read(self, image: str | Path) -> np.ndarray:
        """Return an image as an array (H, W, channels)."""

    def at_own_size(self) -> 'Predictor':
        """Return a model that does not resize images."""

    def predict(self, image: np.ndarray) -> Detections | Segmentation:
        """Predict an image."""
