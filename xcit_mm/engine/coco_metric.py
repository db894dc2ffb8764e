"""mmdet's COCO metric, faster where faster-coco-eval is installed. Needs mmdet."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
from mmdet.evaluation import CocoMetric
from mmdet.evaluation.metrics import coco_metric
from mmengine.logging import MMLogger
from mmengine.registry import METRICS
from pycocotools.cocoeval import COCOeval
from torch import Tensor

from ..predictions.results import run_lengths

try:
    from faster_coco_eval import COCOeval_faster
except ImportError:
    COCOeval_faster = None

KINDS = ('bbox', 'segm')
ITEMS = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l')
DIGITS = 3  # of the figures that mmdet reports
# The two evaluators differ by less. pycocotools adds 2**-52 to the numbers of detections by which
# it divides, so a precision of 1 after a single detection becomes 1 - 2**-52.
MARGIN = 1e-12


class FasterCOCOeval(COCOeval):
    """The evaluation of pycocotools, with matching and counting done by faster-coco-eval.

    Recalls equal those of pycocotools to the last bit, precisions to within 2**-52. Where that
    could change a digit that mmdet reports, pycocotools evaluates instead.
    """

    def evaluate(self) -> None:
        self._faster = COCOeval_faster(self.cocoGt, self.cocoDt, self.params.iouType)
        vars(self._faster.params).update(vars(self.params))
        self._faster.evaluate()

    def accumulate(self) -> None:
        self._faster.accumulate()
        self.params, self.eval = self._faster.params, self._faster.eval

    def summarize(self) -> None:
        super().summarize()
        if np.any(np.round(self.stats - MARGIN, DIGITS) != np.round(self.stats + MARGIN, DIGITS)):
            super().evaluate()
            super().accumulate()
            super().summarize()


@METRICS.register_module()
class CocoAPMetric(CocoMetric):
    """mmdet's ``CocoMetric``, which gives 0 instead of nothing where no object was detected.

    If faster-coco-eval is installed, it matches predictions and objects, with the same figures as
    pycocotools. The arguments are those of ``CocoMetric``; with ``classwise`` or ``use_mp_eval``,
    pycocotools evaluates.
    """

    def process(self, data_batch: Any, data_samples: Sequence[dict[str, Any]]) -> None:
        """Encode the masks, several times as fast as mmdet does, and keep the predictions."""
        encoded = []
        for sample in data_samples:
            predicted = sample['pred_instances']
            if isinstance(predicted.get('masks'), Tensor):
                masks = [run_lengths(mask) for mask in predicted['masks'].bool().cpu().numpy()]
                sample = {**sample, 'pred_instances': {**predicted, 'masks': masks}}
            encoded.append(sample)
        super().process(data_batch, encoded)

    def compute_metrics(self, results: list) -> dict[str, float]:
        is_faster = COCOeval_faster is not None and not (self.classwise or self.use_mp_eval)
        evaluator = FasterCOCOeval if is_faster else COCOeval
        name = 'faster-coco-eval' if is_faster else 'pycocotools'
        if not self.format_only:
            MMLogger.get_current_instance().info('%s evaluates the predictions', name)
        with patch.object(coco_metric, 'COCOeval', evaluator):  # mmdet has no argument for it
            metrics = super().compute_metrics(results)
        if self.format_only:
            return metrics
        for kind in self.metrics:
            if kind in KINDS and not any(name.startswith(kind) for name in metrics):
                metrics |= {f'{kind}_{item}': 0.0 for item in self.metric_items or ITEMS}
        return metrics
