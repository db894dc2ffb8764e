"""Focal losses (RetinaNet, Lin et al. 2017, section 3)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from .gradients import at_least_float32, gradients, once_differentiable

SMALLEST = torch.finfo(torch.float32).tiny


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Write the focal loss of logits (n, C) into ``output``; class C is the background."""
    output.copy_(_focal_loss(*at_least_float32(input), target, weight, gamma, alpha))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Write the gradient of the sum of the loss with respect to the logits."""

    def loss(logits: Tensor) -> Tensor:
        return _focal_loss(logits, target, weight, gamma, alpha)

    grad_input.copy_(*gradients(loss, [input], torch.ones_like(input)))


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


def softmax_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Write the focal loss of probabilities (n, C) into ``output`` (n,), 0 for a target below 0."""
    p, factor = _true_class(input, target, weight, alpha)
    output.copy_(-factor * (1 - p) ** gamma * p.log())


@once_differentiable
def softmax_focal_loss_backward(
    input: Tensor,
    target: Tensor,
    weight: Tensor,
    buff: Tensor,
    grad_input: Tensor,
    gamma: float,
    alpha: float,
) -> None:
    """Write the gradient of the sum of the loss with respect to the logits of ``input``."""
    p, factor = _true_class(input, target, weight, alpha)
    wrong = (1 - p).clamp(min=SMALLEST)  # a power below 0 of it is finite
    buff.copy_(factor * (gamma * wrong ** (gamma - 1) * p * p.log() - wrong**gamma))
    is_true = target[:, None] == torch.arange(input.shape[1], device=input.device)
    grad_input.copy_(buff[:, None] * (is_true.to(input) - input))


def _true_class(
    probabilities: Tensor, target: Tensor, weight: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """Return the probability of the true class, and the factor of its loss."""
    label = target.clamp(min=0)
    (probabilities,) = at_least_float32(probabilities)
    p = probabilities.gather(1, label[:, None])[:, 0].clamp(min=SMALLEST)
    factor = alpha * (target >= 0).to(p)
    return p, factor * weight[label] if weight.numel() else factor
