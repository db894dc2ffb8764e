"""Classes of images by their most similar labeled images: the weighted k-NN of DINO.

Letters in shapes: n labeled images, m queries, C channels, K classes.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

K, TEMPERATURE = 20, 0.07  # in DINO (arXiv 2104.14294, section 4.1)
MAX_SIMILARITIES = 2**25  # in memory at a time


def nearest_neighbors(train: Tensor, queries: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Find the k images whose features have the largest cosine similarity to each query.

    Args:
        train: Features of the labeled images, (n, C).
        queries: Features (m, C). None: each labeled image, without itself as a neighbor.
        k: At least 1. If there are fewer other images, all of them are neighbors.

    Returns:
        The similarities and the indices of the neighbors, (m, k), the most similar one first.
    """
    train = F.normalize(train.float(), dim=-1)
    leaves_out_self = queries is None
    queries = train if queries is None else F.normalize(queries.float(), dim=-1)
    k = min(k, len(train) - leaves_out_self)
    parts = []
    rows = max(1, MAX_SIMILARITIES // max(1, len(train)))
    for start in range(0, len(queries), rows):
        similarities = queries[start : start + rows] @ train.T
        if leaves_out_self:
            similarities.diagonal(start).fill_(-torch.inf)
        parts.append(similarities.topk(k))
    values, indices = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(indices)


def neighbor_votes(
    similarities: Tensor, labels: Tensor, num_classes: int, temperature: float = TEMPERATURE
) -> Tensor:
    """Add up the votes of neighbors for their classes, exp(similarity / temperature) each.

    Args:
        similarities: Of the neighbors of each query, (m, k), the largest one first.
        labels: Their classes, (m, k).
        num_classes: K.
        temperature: The lower it is, the more the most similar images count.

    Returns:
        The share of each class, (m, K), whose sum over the classes is 1.
    """
    weights = F.softmax(similarities / temperature, dim=-1)  # scales all votes of a query alike
    shares = weights.new_zeros(len(weights), num_classes)
    return shares.scatter_add_(1, labels, weights)


def knn_classify(
    train: Tensor,
    labels: Tensor,
    queries: Tensor | None,
    num_classes: int,
    k: int = K,
    temperature: float = TEMPERATURE,
) -> Tensor:
    """Classify images by their neighbors among labeled images.

    Args:
        train: Features of the labeled images, (n, C).
        labels: Their classes, (n,).
        queries: As in :func:`nearest_neighbors`.
        num_classes: K.
        k: As in :func:`nearest_neighbors`.
        temperature: As in :func:`neighbor_votes`.

    Returns:
        The share of each class, (m, K).
    """
    similarities, indices = nearest_neighbors(train, queries, k)
    return neighbor_votes(similarities, labels[indices], num_classes, temperature)


def top_accuracy(scores: Tensor, labels: Tensor, n: int) -> float:
    """Return the percentage of images whose class is among the n best ones of scores (m, K)."""
    best = scores.topk(min(n, scores.shape[1])).indices
    return 100 * (best == labels[:, None]).any(1).cpu().double().mean().item()
