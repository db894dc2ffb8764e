"""Sigmoid focal loss of RetinaNet (Lin et al. 2017)."""

import torch
from torch import Tensor
from torch.nn import functional as F


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Write the focal loss of each class into ``output``.

    Args:
        input: (n, C) logits.
        target: (n,) classes; C stands for the background.
        weight: (C,) weights of the classes, or empty.
        output: (n, C), overwritten.
        gamma: Exponent that lowers the loss of well-classified examples.
        alpha: Weight of positive examples; negative examples have 1 - alpha.
    """
    output.copy_(_sigmoid_focal_loss(input.float(), target, weight, gamma, alpha))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Write the gradient of the sum of the loss to the logits into ``grad_input``."""
    with torch.enable_grad():
        logits = input.detach().float().requires_grad_()
        loss = _sigmoid_focal_loss(logits, target, weight, gamma, alpha).sum()
        grad_input.copy_(*torch.autograd.grad(loss, logits))


def _sigmoid_focal_loss(
    logits: Tensor, target: Tensor, weight: Tensor, gamma: float, alpha: float
) -> Tensor:
    num_classes = logits.shape[1]
    positive = target[:, None] == torch.arange(num_classes, device=target.device)
    p = logits.sigmoid()
    loss = torch.where(
        positive,
        -alpha * (1 - p) ** gamma * F.logsigmoid(logits),
        -(1 - alpha) * p**gamma * F.logsigmoid(-logits),
    )
    if weight.numel():
        loss = loss * weight[target.clamp(max=num_classes - 1)][:, None]
    return loss
