"""mmdet's COCO metric: any ids, classes by name, and faster with faster-coco-eval. Needs mmdet."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from tempfile import TemporaryDirectory
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

from ...base.errors import printable
from ...data.audit.annotations import read_annotations, require_encodable
from ...data.datasets.coco import indexed
from ...predict.errors.error_tables import ErrorTables
from ...predict.errors.object_tables import object_tables
from ...predict.errors.overlaps import Overlaps, overlaps
from ...predict.results import SCORE_THR
from ...predict.results.run_lengths import run_lengths, run_lengths_in

try:
    from faster_coco_eval import COCOeval_faster
except ImportError:
    COCOeval_faster = None

KINDS = {'bbox': 'boxes', 'segm': 'masks'}
# The numbers of detections that COCO counts, and those that mmdet counts for proposals.
OF_COCO, OF_PROPOSALS = (1, 10, 100), (100, 300, 1000)
DIGITS = 3  # decimals of the figures
# The two evaluators differ by less. pycocotools adds 2**-52 to the numbers of detections by which
# it divides, so a precision of 1 after a single detection becomes 1 - 2**-52.
MARGIN = 1e-12


class FasterCOCOeval(COCOeval):
    """The evaluation of pycocotools, with matching and counting done by faster-coco-eval.

    Recalls equal pycocotools' to the last bit, precisions to within 2**-52. Where that
    could change a digit that is reported, pycocotools evaluates instead.
    """

    def evaluate(self) -> None:
        self._faster = COCOeval_faster(self.cocoGt, self.cocoDt, self.params.iouType)
        vars(self._faster.params).update(vars(self.params))
        self._faster.evaluate()

    def accumulate(self) -> None:
        self._faster.accumulate()
        self.params, self.eval = self._faster.params, self._faster.eval
        by_class = np.concatenate([*_precisions_by_class(self).values()])
        values = np.append([*figures(self).values()], by_class)
        if np.any(np.round(values - MARGIN, DIGITS) != np.round(values + MARGIN, DIGITS)):
            super().evaluate()
            super().accumulate()


@METRICS.register_module()
class CocoAPMetric(CocoMetric):
    """mmdet's ``CocoMetric``, but with 0 instead of nothing if no object was detected.

    It reads the annotation file as ``CheckedCocoDataset`` does. If ids of the file were converted
    and there is an ``outfile_prefix``, ``PREFIX.gt.json`` holds the annotations with the ids of the
    predictions. If faster-coco-eval is installed, it matches predictions and objects, with the same
    figures as pycocotools, except with ``use_mp_eval``.

    All precisions, the figures of each class and the error tables count the same detections: those
    of each class in an image with the highest scores, up to the largest number in
    ``proposal_nums``. (mmdet computes ``mAP`` from 100 detections, and other figures from 1000.)

    With ``classwise``, the metrics contain ``bbox_AP_NAME``, ``bbox_AP50_NAME``, ``segm_AP_NAME``
    and ``segm_AP50_NAME`` for each class: -1 if it has no objects. mmdet itself has one figure for
    all of them, ``NAME_precision``, and confuses the classes if the ids of the categories do not
    ascend.

    Args:
        args, kwargs: Arguments of ``CocoMetric``.
        proposal_nums: Numbers of detections: recalls such as ``AR@10`` are measured at each, and
            everything else at the largest. Default: COCO's (1, 10, 100), and for ``proposal`` and
            ``proposal_fast`` mmdet's (100, 300, 1000).
        metric_items: The figures to return, such as ``['mAP', 'AR@100']``. Default: all precisions
            of boxes and masks, and all recalls of proposals.
        classwise: Whether to measure each class. Unlike in ``CocoMetric``, this is the default.
        score_thr: The score from which predictions are counted in :meth:`error_tables`.

    Raises:
        UserError: If the annotation file is invalid, or if an image is too large for masks.
    """

    _remark = ''  # on ids that were converted

    def __init__(
        self,
        *args: Any,
        proposal_nums: Sequence[int] | None = None,
        metric_items: Sequence[str] | None = None,
        classwise: bool = True,
        score_thr: float = SCORE_THR,
        **kwargs: Any,
    ) -> None:
        # mmdet has no argument for the class that reads the file.
        with patch.object(coco_metric, 'COCO', self._read):
            super().__init__(*args, proposal_nums=proposal_nums or OF_PROPOSALS, **kwargs)
        self.metric_items = metric_items
        self._max_dets = sorted({*(proposal_nums or OF_COCO)})
        self._by_class, self._score_thr = classwise, score_thr
        self._predictions: dict[str, COCO] = {}  # of the last evaluation, by kind

    @property
    def note(self) -> str:
        """A sentence on all figures, for the table of a run."""
        return f'At most {self._max_dets[-1]} detections of a class in an image are counted.'

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
                require_encodable(sample['img_path'], sample['ori_shape'])
                masks = [run_lengths_in(*mask, sample['ori_shape']) for mask in masks]
            if masks is not None:
                sample = {**sample, 'pred_instances': {**predicted, 'masks': masks}}
            encoded.append(sample)
        super().process(data_batch, encoded)

    def compute_metrics(self, results: list) -> dict[str, float]:
        if self._remark and self.outfile_prefix is not None:
            fileio.dump(self._coco_api.dataset, f'{self.outfile_prefix}.gt.json')
        if self.format_only:
            return super().compute_metrics(results)
        truths, predictions = zip(*results, strict=True)
        with TemporaryDirectory() as folder:
            prefix = self.outfile_prefix or f'{folder}/results'
            if self._coco_api is None:
                self._coco_api = COCO(self.gt_to_coco_json(truths, prefix))
            if self.img_ids is None:
                self.cat_ids = self._coco_api.get_cat_ids(cat_names=self.dataset_meta['classes'])
                self.img_ids = self._coco_api.get_img_ids()
                self._warn_of_crowded_images()
            files = self.results2json(predictions, prefix)
            results = {kind: fileio.load(files[kind]) for kind in {*self.metrics} & files.keys()}
        metrics, self._predictions = {}, {}
        for kind in self.metrics:
            if kind == 'proposal_fast':
                recalls = self.fast_eval_recall(predictions, self.proposal_nums, self.iou_thrs)
                names = [f'AR@{number}' for number in self.proposal_nums]
                metrics |= dict(zip(names, recalls.tolist(), strict=True))
            else:
                with redirect_stdout(None):  # pycocotools prints what it does
                    metrics |= self._measure(kind, results[kind])
        return metrics

    def _measure(self, kind: str, predictions: list[dict]) -> dict[str, float]:
        """Return the figures of the predictions of a kind of metric."""
        evaluator = COCOeval if COCOeval_faster is None else FasterCOCOeval
        if self.use_mp_eval:
            evaluator = coco_metric.COCOevalMP
        for prediction in predictions if kind == 'segm' else ():
            del prediction['bbox']  # pycocotools would take the sizes of the objects from it
        content = self._coco_api.dataset
        if predictions:
            detected = self._coco_api.loadRes(predictions)
        else:
            detected = indexed(COCO(), {**content, 'annotations': []})
        evaluation = evaluator(self._coco_api, detected, kind if kind in KINDS else 'bbox')
        of_objects = kind in KINDS
        vars(evaluation.params).update(
            catIds=self.cat_ids,
            imgIds=self.img_ids,
            iouThrs=self.iou_thrs,
            maxDets=list(self._max_dets if of_objects else self.proposal_nums),
            useCats=int(of_objects),
        )
        evaluation.evaluate()
        evaluation.accumulate()
        values = {item: round(value, DIGITS) for item, value in figures(evaluation).items()}
        items = self.metric_items or [i for i in values if i.startswith('AR') != of_objects]
        if not of_objects:
            return {item: values[item] for item in items}
        self._predictions[kind] = detected
        metrics = {f'{kind}_{item}': values[item] for item in items}
        categories = self._coco_api.loadCats(evaluation.params.catIds)  # in pycocotools' order
        names = [category['name'] for category in categories]
        for item, precisions in _precisions_by_class(evaluation).items() if self._by_class else ():
            rounded = np.round(precisions, DIGITS).tolist()
            metrics |= {f'{kind}_{item}_{n}': v for n, v in zip(names, rounded, strict=True)}
        return metrics

    def _warn_of_crowded_images(self) -> None:
        """Warn if images have more objects of a class than detections that are counted."""
        counts = {
            image: Counter(e['category_id'] for e in entries if not e.get('iscrowd'))
            for image, entries in self._coco_api.imgToAnns.items()
        }
        most = {i: c.most_common(1)[0] for i, c in counts.items() if c}
        limit = self._max_dets[-1]
        crowded = [i for i, (_, number) in most.items() if number > limit]
        if crowded and {*self.metrics} & KINDS.keys():
            image = max(crowded, key=lambda i: most[i][1])
            category, number = most[image]
            MMLogger.get_current_instance().warning(
                printable(
                    f'{self._coco_api.imgs[image]["file_name"]} has {number} objects of the class '
                    f'{self._coco_api.cats[category]["name"]}, but as in COCO, at most {limit} '
                    f'detections of a class in an image are counted: proposal_nums=(1, 10, '
                    f'{number}) of the evaluator counts more, if max_per_img of model.test_cfg '
                    'allows them'
                )
            )

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
            if field == 'score':
                entries = _most_certain(entries, self._max_dets[-1])
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


def _most_certain(entries: Sequence[dict], limit: int) -> list[dict]:
    """Return the detections of an image that the precisions count: ``limit`` of each class."""
    counted, numbers = [], Counter()
    for entry in sorted(entries, key=lambda entry: -entry['score']):
        numbers[entry['category_id']] += 1
        if numbers[entry['category_id']] <= limit:
            counted.append(entry)
    return counted


def figures(evaluation: COCOeval) -> dict[str, float]:
    """Return COCO's figures, or -1 without objects. All but ``AR@N`` count the most detections.

    pycocotools' own ``summarize`` computes mAP from 100 detections, whatever ``maxDets`` is.
    """
    precision, recall = evaluation.eval['precision'], evaluation.eval['recall']
    numbers, thresholds = evaluation.params.maxDets, evaluation.params.iouThrs
    chosen = {'mAP': precision[..., 0, -1]}
    for percent in (50, 75):
        if (is_chosen := np.isclose(thresholds, percent / 100)).any():
            chosen[f'mAP_{percent}'] = precision[is_chosen][..., 0, -1]
    chosen |= {f'mAP_{size}': precision[..., i, -1] for i, size in enumerate('sml', 1)}
    chosen |= {f'AR@{number}': recall[..., 0, i] for i, number in enumerate(numbers)}
    chosen |= {f'AR_{s}@{numbers[-1]}': recall[..., i, -1] for i, s in enumerate('sml', 1)}
    occurring = {item: values[values > -1] for item, values in chosen.items()}
    return {item: float(v.mean()) if v.size else -1.0 for item, v in occurring.items()}


def _precisions_by_class(evaluation: COCOeval) -> dict[str, np.ndarray]:
    """Return AP and AP50 of each category of an evaluation, -1 without objects."""
    precision = evaluation.eval['precision'][..., 0, -1]  # of all sizes and the most detections
    chosen = {'AP': precision, 'AP50': precision[np.isclose(evaluation.params.iouThrs, 0.5)]}
    # If a class has no objects, its precision is -1 everywhere; otherwise it is -1 nowhere.
    return {item: values.mean(axis=(0, 1)) for item, values in chosen.items() if len(values)}
