"""The loss of a model for an image of any size (of the whole image, until it is computed in tiles)."""

from pathlib import Path

import torch
import torch.distributed as dist
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor, nn

from ..progress import Progress, silent
from .geometry import whole
from .normalized import NormalizedImage


def streamed_loss(
    model: nn.Module,
    image: NormalizedImage,
    sample: BaseDataElement,
    memory: int | None = None,
    store: str | Path | None = None,
    group: dist.ProcessGroup | None = None,
    progress: Progress = silent,
) -> tuple[Tensor, dict[str, float]]:
    """Return the loss of an image, whose ``backward()`` adds the gradients, and its parts."""
    size = image.size
    pixels = image[(slice(None), *whole(size))][None]
    sample.set_metainfo(dict(img_shape=size, pad_shape=size, ori_shape=size, scale_factor=(1, 1)))
    if 'label_windows' in sample:
        labels = torch.from_numpy(sample.label_windows.read(whole(size)).astype('int64'))
        sample.gt_sem_seg = PixelData(data=labels[None])
    losses = model(pixels.to(next(model.parameters()).device), [sample], mode='loss')
    loss, parts = model.parse_losses(losses)
    return loss, {name: value.item() for name, value in parts.items() if name != 'loss'}


def require_trainable_model(model: nn.Module) -> None:
    """Refuse a model whose loss cannot be computed tile by tile."""


def require_room(
    model: nn.Module,
    size: tuple[int, int],
    memory: int | None = None,
    store: str | Path | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Refuse an image (H, W) whose training needs more memory and disk space than there are."""
