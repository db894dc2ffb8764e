"""The k-NN accuracy of the features of labeled images, while a network is pretrained."""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS

from ...predict.results.neighbors import TEMPERATURE, K, knn_classify, top_accuracy


@METRICS.register_module()
class KNNMetric(BaseMetric):
    """The accuracy of the classes that each image gets from its neighbors among all others.

    ``top1`` is the percentage of the images of the validation set whose class has the most votes in
    the weighted k-NN of DINO (:mod:`~xcit_mm.predict.results.neighbors`). It needs no training, and
    so tells from a few labeled images whether a pretraining learns.

    Data samples have ``features`` (C,) and ``gt_label``.

    Args:
        k: The number of neighbors. With fewer other images, all of them are neighbors.
        temperature: The lower it is, the more the most similar images count.
        collect_device: 'cpu' or 'gpu', where the results of several processes are collected.
        prefix: Replaces ``knn``, with which the names of the metrics start.
    """

    default_prefix = 'knn'

    def __init__(
        self,
        k: int = K,
        temperature: float = TEMPERATURE,
        collect_device: str = 'cpu',
        prefix: str | None = None,
    ) -> None:
        super().__init__(collect_device=collect_device, prefix=prefix)
        self.k, self.temperature = k, temperature

    def process(self, data_batch: dict, data_samples: Sequence[dict[str, Any]]) -> None:
        """Keep the features and the class of each image."""
        for sample in data_samples:
            self.results.append((sample['features'].float().cpu(), int(sample['gt_label'])))

    def compute_metrics(self, results: list) -> dict[str, float]:
        features = torch.stack([f for f, _ in results])
        labels = torch.tensor([n for _, n in results])
        num_classes = int(labels.max()) + 1
        votes = knn_classify(features, labels, None, num_classes, self.k, self.temperature)
        return dict(top1=top_accuracy(votes, labels, 1))
