"""The loss of a model for an image of any size, with exact gradients."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.autograd import Function

from ...base.processes import all_processes, cpu_group, require_same
from ...base.progress import Progress, silent
from ..files.normalized_image import NormalizedImage
from ..maps.known_models import require_detector, require_segmentor
from ..maps.streamed_maps import Pyramid
from ..tokens.backward import TrainedPasses, new_gradients, pass_back, workspace_of
from ..tokens.passes import Unread
from ..tokens.streamable import require_trainable
from . import detect_loss, segment_loss


def streamed_loss(
    model: nn.Module,
    image: NormalizedImage,
    sample: BaseDataElement,
    memory: int | None = None,
    store: str | Path | None = None,
    group: dist.ProcessGroup | None = None,
    progress: Progress = silent,
) -> tuple[Tensor, dict[str, float]]:
    """Compute the loss of a model for an image that does not fit into memory as a whole.

    The loss and the gradients of a segmentor equal the whole image's, up to rounding.
    :mod:`.detect_loss` explains the loss of a detector. The gradients are computed right away, tile
    by tile; ``backward()`` of the loss only scales them and adds them to ``grad``.

    Args:
        model: A segmentor that :func:`.require_segmentor` accepts, or a detector that
            :func:`.require_detector` accepts, whose BatchNorm is in evaluation mode.
        image: The image.
        sample: A sample with ``label_windows`` for a segmentor (see :class:`.LabelWindows`), or
            ``gt_instances`` and ``ignored_instances`` for a detector, in pixels of the image.
        memory: See :func:`.stream_backward`.
        store: See :func:`.stream_backward`.
        group: See :class:`.Passes`. All of its processes get the loss and the gradients of the
            whole image.
        progress: The display of the progress.

    Returns:
        The loss, a scalar, and the values that mmdet or mmseg logs, by their names.

    Raises:
        UserError: If the image or the labels cannot be used, or if there is too little memory or
            disk space. If processes share the image, all of them raise it.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    with new_gradients(parameters) as gradients, all_processes(group or cpu_group()):
        parts = _gradients(model, image, sample, memory, store, group, progress)
    loss = sum(value for name, value in parts.items() if 'loss' in name)
    return _Loss.apply(loss, gradients, *parameters), {k: float(v) for k, v in parts.items()}


def require_trainable_model(model: nn.Module) -> None:
    """Refuse a model whose loss cannot be computed tile by tile."""
    require_trainable(model.backbone)
    is_segmentor = hasattr(model, 'decode_head')
    (require_segmentor if is_segmentor else require_detector)(model, segment_loss.HINT)
    if is_segmentor:
        segment_loss.require_streamable_losses(model)
    else:
        detect_loss.require_trainable_detector(model)


def require_room(
    model: nn.Module,
    size: tuple[int, int],
    memory: int | None = None,
    store: str | Path | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Refuse an image (H, W) whose training needs more memory or disk space than there is."""
    with all_processes(group or cpu_group()):
        image = Unread((model.backbone.in_channels, *size))
        passes = TrainedPasses(model.backbone, image, group=group)
        with workspace_of(passes, memory, store):
            pass


def _gradients(
    model: nn.Module,
    image: NormalizedImage,
    sample: BaseDataElement,
    memory: int | None,
    store: str | Path | None,
    group: dist.ProcessGroup | None,
    progress: Progress,
) -> dict[str, Tensor]:
    """Add the gradients of an image to ``grad``, and return the parts of its loss."""
    passes = TrainedPasses(model.backbone, image, group=group)
    if passes.shards.count > 1:
        require_same({'the shape of the image': image.shape}, group or cpu_group())
    trunk = {id(p) for part in passes.trunk for p in part.parameters()}
    of_tiles = [p for p in model.parameters() if p.requires_grad and id(p) not in trunk]

    def losses(*leaves: Any) -> dict[str, Tensor]:
        pyramid = Pyramid(passes, *leaves)
        if hasattr(model, 'decode_head'):
            return segment_loss.losses(model, pyramid, sample.label_windows, progress)
        return detect_loss.losses(model, pyramid, passes, sample, image.size, progress)

    return pass_back(passes, of_tiles, losses, memory, store, progress)


class _Loss(Function):
    """A loss whose gradients are known."""

    @staticmethod
    def forward(ctx, loss: Tensor, gradients: Sequence[Tensor | None], *_: Tensor) -> Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx, factor: Tensor) -> tuple[Any, ...]:
        return None, None, *(None if g is None else factor.to(g) * g for g in ctx.gradients)
