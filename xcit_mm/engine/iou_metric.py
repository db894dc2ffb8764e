"""mmseg's IoU metric with the IoU of each class. Needs mmseg."""

from mmengine.registry import METRICS
from mmseg.evaluation import IoUMetric


@METRICS.register_module()
class ClassIoUMetric(IoUMetric):
    """mmseg's ``IoUMetric``, but it keeps the IoU of each class instead of only printing it.

    It has the arguments of ``IoUMetric``.

    Attributes:
        class_iou: After an evaluation the IoU in percent by class name; NaN for a class that is
            neither in the labels nor predicted.
    """

    def compute_metrics(self, results: list) -> dict[str, float]:
        if not self.format_only:
            intersection, union, _, _ = (sum(areas) for areas in zip(*results, strict=True))
            iou = (intersection / union * 100).tolist()
            self.class_iou = dict(zip(self.dataset_meta['classes'], iou, strict=True))
        return super().compute_metrics(results)
