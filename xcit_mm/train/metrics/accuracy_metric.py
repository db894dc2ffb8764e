"""The accuracy of predicted classes of images."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS

from ...predict.errors.error_tables import ErrorTables

BEST = 5  # classes of which one is right, for top5


@METRICS.register_module()
class AccuracyMetric(BaseMetric):
    """Top-1 and top-5 accuracy in percent, and the mean over the classes of their accuracies.

    ``top5`` is left out if there are at most five classes. It has the arguments of mmengine's
    ``BaseMetric``.
    """

    default_prefix = 'accuracy'

    def process(self, data_batch: dict, data_samples: Sequence[dict[str, Any]]) -> None:
        """Note how many classes have a larger score than the right one in each image."""
        for sample in data_samples:
            scores, label = sample['pred_scores'].cpu().numpy().copy(), int(sample['gt_label'])
            # A class with the same score counts as larger: constant scores are no success, and
            # neither is NaN.
            rank = int((~(scores < scores[label])).sum()) - 1
            scores[label] = -np.inf
            predicted = int(scores.argmax()) if rank else label
            self.results.append((sample.get('img_path', ''), predicted, (label, rank, len(scores))))

    def compute_metrics(self, results: list) -> dict[str, float]:
        self._images = [(name, label, predicted) for name, predicted, (label, *_) in results]
        labels, ranks, classes = np.array([ranked for *_, ranked in results]).T
        hits = ranks == 0
        by_class = [hits[labels == label].mean() for label in np.unique(labels)]
        metrics = dict(top1=100 * hits.mean(), mean_of_classes=100 * np.mean(by_class))
        if classes[0] > BEST:
            metrics['top5'] = 100 * (ranks < BEST).mean()
        return {name: float(value) for name, value in metrics.items()}

    def error_tables(self) -> list[ErrorTables]:
        """Return the errors of the last evaluation, in the process that computed its metrics."""
        classes = tuple(self.dataset_meta['classes'])
        confusion, images = np.zeros((len(classes), len(classes)), int), []
        for name, label, predicted in self._images:
            confusion[label, predicted] += 1
            is_right = int(label == predicted)
            numbers = {predicted: (is_right, 1, is_right)}
            images.append((name, numbers if is_right else numbers | {label: (1, 0, 0)}))
        return [ErrorTables('images', classes, '', confusion, images)]
