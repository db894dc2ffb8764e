"""Sigmoid focal loss of RetinaNet (Lin et al. 2017)."""

import torch
from torch import Tensor
from torch.nn import functional as F


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Write the focal loss of logits (n, C) into ``output``; class C is the background."""
    output.copy_(_focal_loss(input.float(), target, weight, gamma, alpha))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Write the gradient of the sum of the loss with respect to the logits."""
    with torch.enable_grad():
        logits = input.detach().float().requires_grad_()
        loss = _focal_loss(logits, target, weight, gamma, alpha).sum()
        grad_input.copy_(*torch.autograd.grad(loss, logits))


def _focal_loss(
    logits: Tensor, target: Tensor, weight: Tensor, gamma: float, alpha: float
) -> Tensor:
    num_classes = logits.shape[1]
    positive = target[:, None] == torch.arange(num_classes, device=target.device)
    wrong = torch.where(positive, -logits, logits)  # the logit of the wrong answer
    loss = torch.where(positive, alpha, 1 - alpha) * wrong.sigmoid() ** gamma * F.softplus(wrong)
    if weight.numel():
        loss = loss * weight[target.clamp(max=num_classes - 1)][:, None]
    return loss
