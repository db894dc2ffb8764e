"""Normalization of images, or of crops of them, that all have the same size in a batch."""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.model import BaseDataPreprocessor
from mmengine.registry import MODELS
from torch import Tensor


@MODELS.register_module()
class ImagePreprocessor(BaseDataPreprocessor):
    """Stack and normalize images with any number of channels.

    The ``inputs`` of a sample are an image (C, H, W), or a list of groups (n, C, h, w) of crops. A
    batch is (B, C, H, W), or a list of (B, n, C, h, w), in float32.

    Args:
        mean: The mean of each channel, or one for all, in the order after ``bgr_to_rgb``.
        std: The standard deviation of each channel.
        bgr_to_rgb: Whether to reverse the channels, as for images of ``LoadImage``.
    """

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], bgr_to_rgb: bool = False
    ) -> None:
        super().__init__()
        self.bgr_to_rgb = bgr_to_rgb
        for name, values in (('mean', mean), ('std', std)):
            buffer = torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)
            self.register_buffer(name, buffer, persistent=False)

    def forward(self, data: dict, training: bool = False) -> dict:
        data = self.cast_data(data)
        return {**data, 'inputs': self._normalized(data['inputs'])}

    def _normalized(self, inputs: Any) -> Any:
        """Normalize one group of images, or each of several groups."""
        if isinstance(inputs, Tensor) or isinstance(inputs[0], Tensor):
            x = inputs if isinstance(inputs, Tensor) else torch.stack(tuple(inputs))
            x = x.flip(-3) if self.bgr_to_rgb else x
            return (x.float() - self.mean) / self.std
        return [self._normalized(group) for group in inputs]
