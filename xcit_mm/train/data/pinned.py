"""Batches in pinned memory, from which a GPU copies while Python goes on.

A copy from other memory first waits until the GPU has finished all earlier work.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from mmengine.model import BaseDataPreprocessor
from mmengine.structures import BaseDataElement
from torch import Tensor, nn


def pinned(data: Any) -> Any:
    """Return a batch of a loader with its images and labels in pinned memory.

    PyTorch itself pins the tensors in containers. This also pins the boxes, the labels and the maps
    in the samples of mmdet and mmseg, which are changed, and mmdet's masks, which are arrays.
    """
    if isinstance(data, Tensor):
        return data.pin_memory()
    if isinstance(data, Mapping):
        return {name: pinned(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return getattr(data, '_make', type(data))(map(pinned, data))  # of a NamedTuple
    if isinstance(data, BaseDataElement):
        data.set_data({name: pinned(value) for name, value in data.items()})
    elif isinstance(getattr(data, 'tensor', None), Tensor):  # mmdet's boxes
        data.tensor = pinned(data.tensor)
    elif isinstance(getattr(data, 'masks', None), np.ndarray):  # mmdet's BitmapMasks
        data.masks = torch.from_numpy(data.masks).pin_memory().numpy()
    return data


def copy_without_waiting(model: nn.Module) -> None:
    """Make the preprocessors of a model start the copies of batches, and not wait for them.

    This is the argument ``non_blocking`` of mmengine's preprocessors, which mmseg's lacks.
    """
    for module in model.modules():
        if isinstance(module, BaseDataPreprocessor):
            module._non_blocking = True
