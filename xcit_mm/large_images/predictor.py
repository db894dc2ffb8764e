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
    """A trained detector or segmentor, such as :class:`xcit_mm.inference.Model`."""

    task: str
    classes: tuple[str, ...]
    palette: tuple[tuple[int, int, int], ...]
    module: nn.Module
    pipeline: Compose
    bands: LoadMultiband | None
    dtype: torch.dtype  # of slices
    streamed_dtype: torch.dtype  # of an image that the model sees as a whole

    def read(self, image: str | Path) -> np.ndarray: ...
    def predict(self, image: np.ndarray) -> Detections | Segmentation: ...
    def at_own_size(self) -> 'Predictor': ...
