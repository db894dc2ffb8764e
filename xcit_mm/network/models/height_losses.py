"""Losses of heights that leave out pixels without a label, which are NaN. Needs mmseg."""

import torch
from mmengine.registry import MODELS
from mmseg.models.losses.silog_loss import SiLogLoss
from torch import Tensor, nn


@MODELS.register_module()
class LabeledL1Loss(nn.Module):
    """The mean absolute error over the pixels of a batch that have a label.

    Args:
        loss_weight: Factor of the loss.
        loss_name: Name of the loss in the log; it has to start with ``loss_``.
    """

    def __init__(self, loss_weight: float = 1.0, loss_name: str = 'loss_l1') -> None:
        super().__init__()
        self.loss_weight, self.loss_name = loss_weight, loss_name

    def forward(self, predicted: Tensor, heights: Tensor) -> Tensor:
        """Compute the loss of heights (B, 1, H, W)."""
        is_labeled = ~heights.isnan()
        # Not by multiplication with the mask: NaN times 0 is NaN.
        errors = torch.where(is_labeled, predicted - heights.nan_to_num(), 0).abs()
        return self.loss_weight * errors.sum() / is_labeled.sum().clamp(min=1)


@MODELS.register_module()
class LabeledSiLogLoss(SiLogLoss):
    """mmseg's scale-invariant loss of logarithms, for positive heights.

    It is the mean over the images with a label: the gradient of mmseg's loss is NaN for others.
    It has no gradient where a prediction is not positive: build the head with ``positive=True``.
    """

    def forward(self, predicted: Tensor, heights: Tensor) -> Tensor:
        """Compute the loss of heights (B, 1, H, W)."""
        is_labeled = ~heights.isnan().flatten(1).all(1)
        if not is_labeled.any():
            return predicted.sum() * 0
        return super().forward(predicted[is_labeled], heights[is_labeled])
