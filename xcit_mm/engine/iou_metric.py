"""mmseg's IoU metric with the IoU of each class, for images of any size. Needs mmseg."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from mmengine.registry import METRICS
from mmseg.evaluation import IoUMetric
from torch import Tensor

from ..scenes.geometry import tiles, whole
from ..scenes.image_source import TILE


@METRICS.register_module()
class ClassIoUMetric(IoUMetric):
    """mmseg's ``IoUMetric``, but it keeps the IoU of each class instead of only printing it.

    It has the arguments of ``IoUMetric``. A large image has ``label_windows`` instead of labels in
    memory, and only the first of the processes that share it has its prediction.

    Attributes:
        class_iou: After an evaluation the IoU in percent by class name; NaN for a class that is
            neither in the labels nor predicted.
    """

    def process(self, data_batch: dict, data_samples: Sequence[dict[str, Any]]) -> None:
        """Add up the areas of the classes in each image."""
        for sample in data_samples:
            if 'label_windows' not in sample:
                super().process(data_batch, [sample])
            elif 'pred_sem_seg' in sample:
                self.results.append(self._areas(sample))

    def _areas(self, sample: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the areas of ``intersect_and_union``, of all windows of an image."""
        predicted, number = sample['pred_sem_seg']['data'][0], len(self.dataset_meta['classes'])
        areas = []
        for window in tiles(whole(predicted.shape), TILE):
            labels = sample['label_windows'].read(window).astype(np.int64)
            pair = predicted[tuple(window)].long(), torch.from_numpy(labels)
            areas.append(self.intersect_and_union(*pair, number, self.ignore_index))
        # float32, in which mmseg counts, is exact for a window, but not for an image.
        return tuple(sum(area.double() for area in kind) for kind in zip(*areas, strict=True))

    def compute_metrics(self, results: list) -> dict[str, float]:
        if not self.format_only:
            intersection, union, _, _ = (sum(areas) for areas in zip(*results, strict=True))
            iou = (intersection / union * 100).tolist()
            self.class_iou = dict(zip(self.dataset_meta['classes'], iou, strict=True))
        return super().compute_metrics(results)
