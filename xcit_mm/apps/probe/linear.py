"""A deterministic linear classifier on features: logistic regression by L-BFGS."""

import torch
from torch import Tensor
from torch.nn import functional as F

MAX_LOGITS = 2**25  # in memory at once
MAX_ITERATIONS = 200
HISTORY = 10  # steps that L-BFGS remembers
FLAT = 1e-6  # L-BFGS stops when the largest gradient is below this value
SMALLEST = 1e-6  # standard deviation below which a channel counts as constant


def linear_scores(train: Tensor, labels: Tensor, queries: Tensor, num_classes: int) -> Tensor:
    """Fit a linear classifier to the features of labeled images, and classify other images.

    Each channel is normalized with its mean and standard deviation over the labeled images. The
    loss is the mean cross entropy plus the squared weights divided by 2 n, as in scikit-learn's
    ``LogisticRegression`` with C = 1; the bias is not penalized.

    Args:
        train: Features (n, C) of the labeled images.
        labels: The classes (n) of these features.
        queries: Features (m, C) of the images to classify.
        num_classes: The number of classes K.

    Returns:
        The logits (m, K).
    """
    std, mean = torch.std_mean(train, 0, correction=0)
    std = torch.where(std > SMALLEST, std, 1)
    x, n = (train - mean) / std, len(train)
    weight = x.new_zeros(num_classes, x.shape[1], requires_grad=True)
    bias = x.new_zeros(num_classes, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=MAX_ITERATIONS,
        tolerance_grad=FLAT,
        tolerance_change=0.0,
        history_size=HISTORY,
        line_search_fn='strong_wolfe',
    )
    rows = max(1, MAX_LOGITS // num_classes)

    def loss() -> Tensor:
        optimizer.zero_grad()
        penalty = weight.square().sum() / (2 * n)
        penalty.backward()
        total = penalty.detach()
        for part, classes in zip(x.split(rows), labels.split(rows), strict=True):
            part_loss = F.cross_entropy(F.linear(part, weight, bias), classes, reduction='sum') / n
            part_loss.backward()
            total = total + part_loss.detach()
        return total

    optimizer.step(loss)
    return F.linear((queries - mean) / std, weight, bias).detach()
