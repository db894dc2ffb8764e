"""mmdet's losses of boxes without the wait in which they look for a positive weight."""

from mmdet.models.losses import L1Loss, SmoothL1Loss
from mmdet.models.losses.smooth_l1_loss import l1_loss, smooth_l1_loss
from torch import Tensor


def can_compute(loss: object) -> bool:
    """Return whether :func:`box_loss` does what a loss does."""
    return type(loss) in (L1Loss, SmoothL1Loss)


def box_loss(
    loss: L1Loss | SmoothL1Loss,
    deltas: Tensor,
    targets: Tensor,
    are_positive: Tensor,
    count: Tensor | int,
) -> Tensor:
    """Return the sum of the losses of positive boxes over a count.

    Args:
        loss: mmdet's loss.
        deltas: (..., 4), predicted.
        targets: (..., 4), finite also where they do not count.
        are_positive: (...,), the boxes that count.
        count: What mmdet calls the average factor.
    """
    weight = are_positive[..., None].expand_as(targets).to(deltas.dtype)
    options = dict(reduction=loss.reduction, avg_factor=count)
    if isinstance(loss, SmoothL1Loss):
        return loss.loss_weight * smooth_l1_loss(deltas, targets, weight, beta=loss.beta, **options)
    return loss.loss_weight * l1_loss(deltas, targets, weight, **options)
