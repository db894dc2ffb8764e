"""The errors of predicted heights, over the pixels that have a label. Needs mmseg."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS

from ...predict.results.seams import largest_steps

MAX_RATIO = 1.25  # of a height and its label, in delta1


@METRICS.register_module()
class HeightMetric(BaseMetric):
    """Mean absolute error, root mean squared error, and the share of nearly correct heights.

    ``MAE`` and ``RMSE`` are in the unit of the labels. ``delta1`` is the percentage of the pixels
    with a positive label whose prediction is at most 1.25 times the label, and at least the label
    divided by 1.25. All pixels of the dataset with a label count alike.

    Args:
        tile: Side in pixels of the tiles whose borders are checked: ``step`` is the largest false
            step across them, and ``step_inside`` the largest one elsewhere; see
            :func:`~xcit_mm.predict.results.seams.largest_steps`. Default: neither is measured.
        collect_device: 'cpu' or 'gpu', where the results of several processes are collected.
        prefix: Replaces ``height``, with which the names of the metrics start.
    """

    default_prefix = 'height'

    def __init__(
        self, tile: int | None = None, collect_device: str = 'cpu', prefix: str | None = None
    ) -> None:
        super().__init__(collect_device=collect_device, prefix=prefix)
        self.tile = tile

    def process(self, data_batch: dict, data_samples: Sequence[dict[str, Any]]) -> None:
        """Add up the errors in each image."""
        for sample in data_samples:
            pair = (sample[name]['data'][0] for name in ('pred_depth_map', 'gt_depth_map'))
            predicted, heights = (values.cpu().double().numpy() for values in pair)
            is_labeled = ~np.isnan(heights)
            error = (predicted - heights)[is_labeled]
            positive = is_labeled & (heights > 0)
            ratio = predicted[positive] / heights[positive]
            is_near = (ratio <= MAX_RATIO) & (ratio >= 1 / MAX_RATIO)
            sums = len(error), np.abs(error).sum(), (error**2).sum(), len(ratio), is_near.sum()
            steps = ()
            if self.tile is not None:
                borders = (range(self.tile, n, self.tile) for n in heights.shape)
                steps = largest_steps(predicted, heights, *borders)
            self.results.append((np.array(sums, float), steps))

    def compute_metrics(self, results: list) -> dict[str, float]:
        sums, steps = zip(*results, strict=True)
        number, absolute, squared, positive, near = sum(sums).tolist()
        metrics = dict(MAE=absolute / number, RMSE=math.sqrt(squared / number)) if number else {}
        if positive:
            metrics['delta1'] = 100 * near / positive
        if self.tile is not None:
            largest = np.max(steps, axis=0).tolist()
            metrics |= dict(zip(('step', 'step_inside'), largest, strict=True))
        return metrics
