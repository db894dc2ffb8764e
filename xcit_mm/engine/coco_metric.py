"""mmdet's COCO metric: any ids, classes by name, and faster with faster-coco-eval. Needs mmdet."""

from collections.abc import Iterator, Sequence
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

from ..analysis.error_tables import ErrorTables
from ..analysis.object_tables import object_tables
from ..analysis.overlaps import Overlaps, overlaps
from ..datasets.annotations import read_annotations, require_encodable
from ..datasets.coco import indexed
from ..errors import ArgumentError
from ..large_images.large_predictions import run_lengths_in
from ..predictions import SCORE_THR
from ..predictions.results import run_lengths
from ..scenes.geometry import Window

try:
    from faster_coco_eval import COCOeval_faster
except ImportError:
    COCOeval_faster = None

KINDS = {'bbox': 'boxes', 'segm': 'masks'}
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
        figures = np.append(self.stats, [*_precisions_by_class(self).values()])
        if np.any(np.round(figures - MARGIN, DIGITS) != np.round(figures + MARGIN, DIGITS)):
            super().evaluate()
            super().accumulate()
            super().summarize()


@METRICS.register_module()
class CocoAPMetric(CocoMetric):
    """mmdet's ``CocoMetric``, but with 0 instead of nothing if no object was detected.

    It reads the annotation file as ``CheckedCocoDataset`` does. If ids of the file were converted
    and there is an ``outfile_prefix``, ``PREFIX.gt.json`` holds the annotations with the ids of the
    predictions. If faster-coco-eval is installed, it matches predictions and objects, with the same
    figures as pycocotools, except with ``use_mp_eval``.

    With ``classwise``, the metrics contain ``bbox_AP_NAME``, ``bbox_AP50_NAME``, ``segm_AP_NAME``
    and ``segm_AP50_NAME`` for each class: -1 if it has no objects. mmdet itself has one figure for
    all of them, ``NAME_precision``, and confuses the classes if the ids of the categories do not
    ascend.

    Args:
        args, kwargs: Arguments of ``CocoMetric``.
        classwise: Whether to measure each class. Unlike in ``CocoMetric``, this is the default.
        score_thr: The score from which predictions are counted in :meth:`error_tables`.

    Raises:
        UserError: If the annotation file is invalid, or if an image is too large for masks.
    """

    _remark = ''  # on ids that were converted

    def __init__(
        self, *args: Any, classwise: bool = True, score_thr: float = SCORE_THR, **kwargs: Any
    ) -> None:
        if type(score_thr) not in (int, float) or not 0 <= score_thr <= 1:
            raise ArgumentError(f'CocoAPMetric: score_thr={score_thr!r} is not from 0 to 1')
        # mmdet has no argument for the class that reads the file, nor for the one that evaluates.
        with patch.object(coco_metric, 'COCO', self._read):
            super().__init__(*args, **kwargs)
        self._by_class, self._score_thr = classwise, score_thr
        self._predictions: dict[str, COCO] = {}  # of the last evaluation, by kind

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
        self._predictions = {e.params.iouType: e.cocoDt for e in evaluations if e.params.useCats}
        if self.format_only:
            return metrics
        for kind in self.metrics:
            if kind in KINDS and not any(name.startswith(kind) for name in metrics):
                metrics |= {f'{kind}_{item}': 0.0 for item in self.metric_items or ITEMS}
        return metrics | self._metrics_by_class(evaluations)

    def error_tables(self) -> list[ErrorTables]:
        """Return the errors of the last evaluation, in the process that computed its metrics.

        The predictions are then forgotten, because their masks can take gigabytes.
        """
        predictions, self._predictions = self._predictions, {}
        classes, kinds = tuple(self.dataset_meta['classes']), set(self.metrics) & KINDS.keys()
        return [
            object_tables(
                KINDS[kind], classes, self._overlaps(kind, predictions.get(kind)), self._score_thr
            )
            for kind in sorted(kinds if not self.format_only else ())
        ]

    def _overlaps(self, kind: str, predictions: COCO | None) -> Iterator[tuple[str, Overlaps]]:
        """Yield the name and the objects of each image; no prediction for None."""
        labels = {id_: label for label, id_ in enumerate(self.cat_ids)}

        def objects(coco: COCO | None, image: int, field: str) -> list[tuple]:
            """Return a field, the class, and the box or the run lengths of each object."""
            entries = [] if coco is None else coco.imgToAnns[image]
            return [
                (
                    entry.get(field, 0),  # faster-coco-eval needs no iscrowd
                    labels[id_],
                    entry['bbox'] if kind == 'bbox' else coco.annToRLE(entry),
                )
                for entry in entries
                if (id_ := entry['category_id']) in labels
            ]

        for image in self.img_ids:
            name = self._coco_api.imgs[image]['file_name'] or str(image)
            annotated = objects(self._coco_api, image, 'iscrowd')
            yield name, overlaps(objects(predictions, image, 'score'), annotated)

    def _metrics_by_class(self, evaluations: Sequence[COCOeval]) -> dict[str, float]:
        if not self._by_class:
            return {}
        items = ['AP', *(['AP50'] if _is_50(self.iou_thrs).any() else [])]
        kinds = [kind for kind in self.metrics if kind in KINDS]
        names = [f'{item}_{name}' for item in items for name in self.dataset_meta['classes']]
        metrics = {f'{kind}_{name}': 0.0 for kind in kinds for name in names}
        for evaluation in evaluations:
            ids, kind = evaluation.params.catIds, evaluation.params.iouType
            if evaluation.params.useCats:  # not of proposals
                names = [category['name'] for category in self._coco_api.loadCats(ids)]
                for item, precisions in _precisions_by_class(evaluation).items():
                    values = np.round(precisions, DIGITS).tolist()
                    metrics |= {f'{kind}_{item}_{n}': v for n, v in zip(names, values, strict=True)}
        return metrics


def _run_lengths_in(
    masks: Sequence[tuple[Window, np.ndarray]], sample: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the run lengths of masks, each in a window of a large image."""
    size = sample['ori_shape']
    require_encodable(sample['img_path'], size)
    return [run_lengths_in(window, mask, size) for window, mask in masks]


def _precisions_by_class(evaluation: COCOeval) -> dict[str, np.ndarray]:
    """Return AP and AP50 of each category of an evaluation, -1 without objects."""
    precision = evaluation.eval['precision'][..., 0, -1]  # of all sizes and the most detections
    chosen = {'AP': precision, 'AP50': precision[_is_50(evaluation.params.iouThrs)]}
    # If a class has no objects, its precision is -1 everywhere; otherwise it is -1 nowhere.
    return {item: values.mean(axis=(0, 1)) for item, values in chosen.items() if len(values)}


def _is_50(iou_thrs: Sequence[float]) -> np.ndarray:
    return np.isclose(iou_thrs, 0.5)
