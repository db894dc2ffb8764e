"""Normalization of images with any number of channels."""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.model import ImgDataPreprocessor
from mmengine.registry import MODELS


@MODELS.register_module()
def MultibandPreprocessor(  # noqa: N802  a type in configs
    base: str, mean: Sequence[float], std: Sequence[float], **arguments: Any
) -> ImgDataPreprocessor:
    """Build the preprocessor of mmdet or mmseg for images with any number of channels.

    The classes themselves accept a mean and a standard deviation of 1 or 3 channels only.

    Args:
        base: 'DetDataPreprocessor', 'SegDataPreProcessor' or another subclass of mmengine's.
        mean: The mean of each channel, in the order of the bands.
        std: The standard deviation of each channel.
        arguments: Other arguments of ``base``.
    """
    preprocessor = MODELS.build(dict(type=base, **arguments))
    for name, values in (('mean', mean), ('std', std)):
        buffer = torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)
        preprocessor.register_buffer(name, buffer, persistent=False)
    preprocessor._enable_normalize = True
    return preprocessor
