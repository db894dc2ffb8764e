"""Panoptic quality (arXiv 1801.00868, section 4) without the package panopticapi. Needs mmdet."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from mmengine import fileio
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS

from ...base.errors import UserError
from ...data.audit.annotations import read_panoptic_annotations
from ...data.datasets.segment_ids import segment_ids
from ...data.transforms.decode import BadImageError
from ...predict.results.segmentation import INSTANCE_OFFSET

PAIR = 2**32  # more than the largest id


@METRICS.register_module()
class PanopticQualityMetric(BaseMetric):
    """Panoptic, segmentation and recognition quality in percent: PQ, SQ and RQ.

    Each is a mean over the classes that occur: all, things (``_th``) and stuff (``_st``). As in
    panopticapi, a predicted segment does not count if it lies mostly in pixels without a segment or
    in the crowd of its class.

    Args:
        ann_file: The JSON file of the annotations; its things come before its stuff.
        seg_prefix: The folder of their PNG files.
        backend_args: Arguments of mmengine's file backend for data that is not in local files.
        collect_device: As in mmengine's ``BaseMetric``.
        prefix: As in mmengine's ``BaseMetric``.
    """

    default_prefix = 'coco_panoptic'

    def __init__(
        self,
        ann_file: str,
        seg_prefix: str,
        backend_args: dict | None = None,
        collect_device: str = 'cpu',
        prefix: str | None = None,
    ) -> None:
        super().__init__(collect_device, prefix)
        with fileio.get_local_path(ann_file, backend_args=backend_args) as path:
            content = read_panoptic_annotations(path).content
        annotations = content.get('annotations', ())
        self._annotations = {entry['image_id']: entry for entry in annotations}
        self._labels = {category['id']: i for i, category in enumerate(content['categories'])}
        self._is_thing = np.array([category['isthing'] for category in content['categories']], bool)
        self._seg_prefix, self._backend_args = seg_prefix, backend_args

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        for sample in data_samples:
            annotation = self._annotations[sample['img_id']]
            path = fileio.join_path(self._seg_prefix, annotation['file_name'])
            segments = annotation['segments_info']
            predicted = sample['pred_panoptic_seg']['sem_seg'][0].cpu().numpy()
            try:
                ids = segment_ids(path, self._backend_args)
            except BadImageError as error:
                raise UserError(f'{path}: {error}') from None
            labels = {s['id']: self._labels[s['category_id']] for s in segments}
            crowds = {s['id'] for s in segments if s.get('iscrowd')}
            self.results.append(_count_matches(ids, labels, crowds, predicted, len(self._labels)))

    def compute_metrics(self, results: list[np.ndarray]) -> dict[str, float]:
        iou, matched, predicted, annotated = sum(results)
        occurs = predicted + annotated > 0
        metrics = {}
        for suffix, chosen in (('', True), ('_th', self._is_thing), ('_st', ~self._is_thing)):
            classes = occurs & chosen
            recognition = 2 * matched[classes] / (predicted + annotated)[classes]
            segmentation = iou[classes] / np.maximum(matched[classes], 1)
            values = dict(PQ=recognition * segmentation, SQ=segmentation, RQ=recognition)
            for name, value in values.items():
                metrics[name + suffix] = 100 * float(value.mean()) if len(value) else 0.0
        return metrics


def _count_matches(
    ids: np.ndarray,
    labels: dict[int, int],
    crowds: set[int],
    predicted: np.ndarray,
    num_classes: int,
) -> np.ndarray:
    """Return the sums of IoUs, and the numbers of matches, predictions and annotations by class.

    ``ids`` is the annotated segment of each pixel, with its class in ``labels``. ``predicted`` is
    the class, ``num_classes`` for none, plus ``INSTANCE_OFFSET`` times the number of the object.
    """
    values, numbers = np.unique(ids.astype(np.int64) * PAIR + predicted, return_counts=True)
    common = {divmod(v, PAIR): n for v, n in zip(values.tolist(), numbers.tolist(), strict=True)}
    area, predicted_area, void, ignored = Counter(), Counter(), Counter(), Counter()
    for (i, segment), n in common.items():
        area[i] += n
        predicted_area[segment] += n
        void[segment] += n * (i not in labels)
        is_in_crowd = i in crowds and labels[i] == segment % INSTANCE_OFFSET
        ignored[segment] += n * (i not in labels or is_in_crowd)

    counts = np.zeros((4, num_classes))
    ious, matches, num_predicted, num_annotated = counts
    matched = set()
    for (i, segment), n in common.items():
        label = segment % INSTANCE_OFFSET
        if i not in crowds and labels.get(i) == label:
            iou = n / (area[i] + predicted_area[segment] - n - void[segment])
            if iou > 0.5:  # so no segment has two matches
                ious[label] += iou
                matches[label] += 1
                matched.add(segment)
    for segment, n in predicted_area.items():
        label = segment % INSTANCE_OFFSET
        if label < num_classes and (segment in matched or ignored[segment] <= n / 2):
            num_predicted[label] += 1
    for i in labels.keys() - crowds:
        num_annotated[labels[i]] += 1
    return counts
