"""The metrics of mmdet and mmseg with what a report needs beyond their figures.

Each is built by a function, so that a detector does without mmseg and a segmentor without mmdet.
"""

from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS

COCO_KINDS = ('bbox', 'segm')
COCO_ITEMS = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l')


@METRICS.register_module('CocoAPMetric')
def coco_ap_metric(**kwargs) -> BaseMetric:
    """Mmdet's CocoMetric that gives 0, and not nothing, where no object was detected.

    Args:
        **kwargs: Those of CocoMetric.
    """
    from mmdet.evaluation import CocoMetric

    class CocoAPMetric(CocoMetric):
        def compute_metrics(self, results: list) -> dict[str, float]:
            metrics = super().compute_metrics(results)
            if self.format_only:
                return metrics
            for kind in self.metrics:
                if kind in COCO_KINDS and not any(name.startswith(kind) for name in metrics):
                    items = self.metric_items or COCO_ITEMS
                    metrics |= {f'{kind}_{item}': 0.0 for item in items}
            return metrics

    return CocoAPMetric(**kwargs)


@METRICS.register_module('ClassIoUMetric')
def class_iou_metric(**kwargs) -> BaseMetric:
    """Mmseg's IoUMetric that keeps the IoU of each class, which it prints but does not return.

    It is in ``class_iou`` after an evaluation, in percent by class name; NaN for a class that
    is neither in the labels nor predicted.

    Args:
        **kwargs: Those of IoUMetric.
    """
    from mmseg.evaluation import IoUMetric

    class ClassIoUMetric(IoUMetric):
        def compute_metrics(self, results: list) -> dict[str, float]:
            if not self.format_only:
                intersection, union, _, _ = (sum(areas) for areas in zip(*results, strict=True))
                iou = (intersection / union * 100).tolist()
                self.class_iou = dict(zip(self.dataset_meta['classes'], iou, strict=True))
            return super().compute_metrics(results)

    return ClassIoUMetric(**kwargs)
