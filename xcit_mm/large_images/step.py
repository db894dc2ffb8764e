"""A training step on an image that does not fit into memory."""

from pathlib import Path

import torch
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor, nn

from ..progress import Progress, silent
from .geometry import whole
from .normalized import NormalizedImage


def streamed_loss(
    module: nn.Module,
    image: NormalizedImage,
    sample: BaseDataElement,
    *,
    memory: int | None = None,
    store: str | Path | None = None,
    shared: bool = False,
    progress: Progress = silent,
) -> tuple[Tensor, dict[str, float]]:
    """Return the loss of an image, whose ``backward()`` adds the gradients, and its parts."""
    size = image.size
    pixels = image[(slice(None), *whole(size))][None]
    sample.set_metainfo(dict(img_shape=size, pad_shape=size, ori_shape=size, scale_factor=(1, 1)))
    if 'label_windows' in sample:
        labels = torch.from_numpy(sample.label_windows.read(whole(size)).astype('int64'))
        sample.gt_sem_seg = PixelData(data=labels[None])
    losses = module(pixels.to(next(module.parameters()).device), [sample], mode='loss')
    loss, parts = module.parse_losses(losses)
    return loss, {name: value.item() for name, value in parts.items()}


def require_room(
    module: nn.Module, size: tuple[int, int], memory: int | None, store: str | Path | None
) -> None:
    """Refuse an image (H, W) whose training step needs more memory and disk than there is."""
