"""mmdet's COCO metric: any ids, classes by name, and faster with faster-coco-eval. Needs mmdet."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
from mmdet.datasets.api_wrappers import COCO
from mmdet.evaluation import CocoMetric
from mmdet.evaluation.metrics import coco_metric
from mmengine import fileio
from mmengine.logging import MMLogger
from mmengine.registry import METRICS
from pycocotools.cocoeval import COCOeval
from torch import Tensor

from ..datasets.annotations import read_annotations, require_encodable
from ..datasets.coco import indexed
from ..large_images.large_predictions import run_lengths_in
from ..predictions.results import run_lengths
from ..scenes.geometry import Window

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

    Recalls equal pycocotools' to the last bit, precisions to within 2**-52. Where that
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
        figures = np.append(self.stats, _precisions_by_class(self))
        if np.any(np.round(figures - MARGIN, DIGITS) != np.round(figures + MARGIN, DIGITS)):
            super().evaluate()
            super().accumulate()
            super().summarize()


@METRICS.register_module()
class CocoAPMetric(CocoMetric):
    """mmdet's ``CocoMetric``, but with 0 instead of nothing if no object was detected.

    It has the arguments of ``CocoMetric``. It reads the annotation file as ``CheckedCocoDataset``
    does. If ids of the file were converted and there is an ``outfile_prefix``, ``PREFIX.gt.json``
    holds the annotations with the ids of the predictions. If faster-coco-eval is installed, it
    matches predictions and objects, with the same figures as pycocotools, except with
    ``use_mp_eval``.

    With ``classwise``, the metrics contain ``bbox_AP_NAME`` and ``segm_AP_NAME`` for each class: -1
    if it has no objects. mmdet itself has one figure for both, ``NAME_precision``, and confuses the
    classes if the ids of the categories do not ascend.

    Raises:
        UserError: If the annotation file is invalid, or if an image is too large for masks.
    """

    _remark = ''  # on ids that were converted

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # mmdet has no argument for the class that reads the file, nor for the one that evaluates.
        with patch.object(coco_metric, 'COCO', self._read):
            super().__init__(*args, **kwargs)
        self._by_class, self.classwise = self.classwise, False

    def _read(self, path: str) -> COCO:
        content, self._remark = read_annotations(path, 'segm' in self.metrics)
        # pycocotools marks predictions with the ids of their objects, and 0 means no object.
        for number, annotation in enumerate(content.get('annotations', ()), 1):
            annotation['id'] = number
        return indexed(COCO(), content)

    def process(self, data_batch: Any, data_samples: Sequence[dict[str, Any]]) -> None:
        """Encode the masks, several times as fast as mmdet does, and keep the predictions.

        The masks of a large image are windows. If processes share the image, only the first one has
        its prediction.
        """
        encoded = []
        for sample in data_samples:
            if 'pred_instances' not in sample:
                continue
            predicted = sample['pred_instances']
            masks = predicted.get('masks')
            if isinstance(masks, Tensor):
                masks = [run_lengths(mask) for mask in masks.bool().cpu().numpy()]
            elif masks is not None and 'segm' in self.metrics:
                masks = _run_lengths_in(masks, sample)
            if masks is not None:
                sample = {**sample, 'pred_instances': {**predicted, 'masks': masks}}
            encoded.append(sample)
        super().process(data_batch, encoded)

    def compute_metrics(self, results: list) -> dict[str, float]:
        evaluator, name = COCOeval, 'pycocotools'
        if self.use_mp_eval:
            evaluator = coco_metric.COCOevalMP
        elif COCOeval_faster is not None:
            evaluator, name = FasterCOCOeval, 'faster-coco-eval'
        evaluations: list[COCOeval] = []

        def evaluation(*args: Any) -> COCOeval:
            evaluations.append(evaluator(*args))
            return evaluations[-1]

        if self._remark and self.outfile_prefix is not None:
            fileio.dump(self._coco_api.dataset, f'{self.outfile_prefix}.gt.json')
        if not self.format_only:
            MMLogger.get_current_instance().info('%s evaluates the predictions', name)
        with patch.multiple(coco_metric, COCOeval=evaluation, COCOevalMP=evaluation):
            metrics = super().compute_metrics(results)
        if self.format_only:
            return metrics
        for kind in self.metrics:
            if kind in KINDS and not any(name.startswith(kind) for name in metrics):
                metrics |= {f'{kind}_{item}': 0.0 for item in self.metric_items or ITEMS}
        return metrics | self._metrics_by_class(evaluations)

    def _metrics_by_class(self, evaluations: Sequence[COCOeval]) -> dict[str, float]:
        if not self._by_class:
            return {}
        kinds = [kind for kind in self.metrics if kind in KINDS]
        metrics = {f'{k}_AP_{name}': 0.0 for k in kinds for name in self.dataset_meta['classes']}
        for evaluation in evaluations:
            ids, kind = evaluation.params.catIds, evaluation.params.iouType
            if evaluation.params.useCats:  # not of proposals
                names = [category['name'] for category in self._coco_api.loadCats(ids)]
                values = np.round(_precisions_by_class(evaluation), DIGITS).tolist()
                metrics |= {f'{kind}_AP_{n}': v for n, v in zip(names, values, strict=True)}
        return metrics


def _run_lengths_in(
    masks: Sequence[tuple[Window, np.ndarray]], sample: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the run lengths of masks, each in a window of a large image."""
    size = sample['ori_shape']
    require_encodable(sample['img_path'], size)
    return [run_lengths_in(window, mask, size) for window, mask in masks]


def _precisions_by_class(evaluation: COCOeval) -> np.ndarray:
    """Return the average precision of each category of an evaluation, -1 without objects."""
    precision = evaluation.eval['precision'][..., 0, -1]  # of all sizes and the most detections
    # If a class has no objects, its precision is -1 everywhere; otherwise it is -1 nowhere.
    return precision.mean(axis=(0, 1))
