"""The losses of mmseg as sums over the pixels of an image, added up window by window.

``loss_decode`` of a head holds modules that compute a loss from all pixels at once. Each class here
computes the share that some pixels have in the loss of such a module. Values that depend on all
pixels are known beforehand: the number of pixels of each label and, for Dice, sums from a pass
without gradients.
"""

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor, nn

from ...network.ops.moments import to_widest
from ..tokens.shards import Shards

EPS = torch.finfo(torch.float32).eps  # mmseg adds it to its divisors


class PixelLoss(ABC):
    """A loss of a head.

    Args:
        module: The loss of mmseg.
        head: The head.
        counts: The number of pixels of each label, from 0.

    Attributes:
        needs_sums: Whether all pixels have to be passed to :meth:`add` before :meth:`share`.
    """

    needs_sums = False

    def __init__(self, module: nn.Module, head: nn.Module, counts: np.ndarray) -> None:
        self._module, self._ignored = module, head.ignore_index

    def add(self, scores: Tensor, labels: Tensor) -> None:  # noqa: B027
        """Add pixels to the sums that the loss depends on, if there are any."""

    def finish_sums(self, shards: Shards) -> None:  # noqa: B027
        """Finish the sums. All processes have to call this method."""

    @abstractmethod
    def share(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return a number whose gradients, over all windows, add up to the gradient of the loss.

        The shapes are (1, C, h, w) of the scores and (1, h, w) of the labels.
        """

    @abstractmethod
    def value(self, shards: Shards) -> Tensor:
        """Return the loss after the shares of all windows. All processes have to call it."""


class CrossEntropy(PixelLoss):
    """mmseg's CrossEntropyLoss module, with the divisor of the whole image."""

    def __init__(self, module: nn.Module, head: nn.Module, counts: np.ndarray) -> None:
        super().__init__(module, head, counts)
        self._divisor = _divisor(module, head, counts)
        self._sum = torch.zeros((), dtype=torch.float64)

    def share(self, scores: Tensor, labels: Tensor) -> Tensor:
        if (labels != self._ignored).any():
            sum_of_pixels = dict(ignore_index=self._ignored, reduction_override='sum')
            loss = self._module(scores, labels, **sum_of_pixels) / self._divisor
        else:  # mmseg fails without labeled pixels: it takes the maximum of no labels
            loss = 0 * scores.sum()
        self._sum += loss.detach().cpu()
        return loss

    def value(self, shards: Shards) -> Tensor:
        return shards.sum(self._sum)


def _divisor(module: nn.Module, head: nn.Module, counts: np.ndarray) -> float:
    """Return what mmseg divides the sum over the pixels by."""
    if module.reduction == 'sum':
        return 1.0
    of_labels = counts.astype(np.float64)
    outputs = head.out_channels if module.use_sigmoid else 1  # each of which has a term
    if module.reduction == 'none' or (module.use_sigmoid and not module.avg_non_ignore):
        return of_labels.sum() * outputs  # the mean
    labeled = np.arange(len(counts)) != head.ignore_index
    if module.class_weight is not None and not module.use_sigmoid:
        # mmseg fails where avg_non_ignore=True meets ignored labels, and the original package also
        # where it is False. Where onedl's fork does not fail, ignored labels have no weight.
        weights = np.zeros(len(counts))
        classes = min(len(counts), len(module.class_weight))
        weights[:classes] = module.class_weight[:classes]
        return (of_labels * weights)[labeled].sum() + EPS
    if module.avg_non_ignore:
        return of_labels[labeled].sum() * outputs + EPS
    return of_labels.sum() + EPS


class Dice(PixelLoss):
    """mmseg's DiceLoss, a function of sums of probabilities over all pixels and classes.

    A first pass computes the sums. The share of a window is its part of the sums times the
    derivative of the loss with respect to them.
    """

    needs_sums = True

    def __init__(self, module: nn.Module, head: nn.Module, counts: np.ndarray) -> None:
        super().__init__(module, head, counts)
        is_counted = np.arange(min(head.out_channels, len(counts))) != module.ignore_index
        self._labeled = float(counts[: len(is_counted)][is_counted].sum())
        self._sums = torch.zeros(2, dtype=torch.float64)
        self._value = self._derivatives = None

    def add(self, scores: Tensor, labels: Tensor) -> None:
        self._sums += self._sums_of(scores, labels).cpu()

    def finish_sums(self, shards: Shards) -> None:
        sums = shards.sum(self._sums).requires_grad_()
        common, predicted = sums
        eps, labeled = self._module.eps, self._labeled
        if self._module.naive_dice:
            dice = (2 * common + eps) / (predicted + labeled + eps)
        else:
            dice = 2 * common / ((predicted + eps) + (labeled + eps))
        value = self._module.loss_weight * (1 - dice)
        (self._derivatives,) = torch.autograd.grad(value, sums)
        self._value = value.detach()

    def share(self, scores: Tensor, labels: Tensor) -> Tensor:
        sums = self._sums_of(scores, labels)
        return sums @ self._derivatives.to(sums)

    def value(self, shards: Shards) -> Tensor:
        return self._value

    def _sums_of(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the sums of the probabilities of the labels, and of all of them."""
        module, classes = self._module, scores.shape[1]
        if not module.activate:
            p = scores
        elif module.use_sigmoid:
            p = scores.sigmoid()
        else:  # mmseg does not normalize the only output
            p = scores.softmax(1) if classes > 1 else scores
        labels = labels.clamp(min=0)
        is_label = (labels < classes) & (labels != module.ignore_index)
        of_label = p.gather(1, labels.clamp(max=classes - 1)[:, None])[:, 0]
        if module.ignore_index is not None and 0 <= module.ignore_index < classes:
            is_counted = torch.arange(classes, device=p.device) != module.ignore_index
            p = p[:, is_counted]
        sums = (of_label * is_label).sum(), (p if module.naive_dice else p.square()).sum()
        return to_widest(torch.stack(sums))


def losses_by_type() -> dict[type, type[PixelLoss]]:
    """Return the class here of each loss of mmseg that has one."""
    from mmseg.models.losses import CrossEntropyLoss, DiceLoss

    return {CrossEntropyLoss: CrossEntropy, DiceLoss: Dice}
