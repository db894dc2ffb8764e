"""mmseg's IoU with the figures of each class.

Apart from the other modules, because it needs mmseg: the bases of the segmentors import it.
"""

from mmseg.evaluation import IoUMetric
from mmseg.registry import METRICS


@METRICS.register_module()
class ClassIoUMetric(IoUMetric):
    """IoUMetric that keeps the IoU of each class, which mmseg prints but does not return.

    Attributes:
        class_iou: Of the last evaluation, in percent by class name; NaN for a class that is
            neither in the labels nor predicted.
    """

    class_iou: dict[str, float]

    def compute_metrics(self, results: list) -> dict[str, float]:
        intersection, union, _, _ = (sum(areas) for areas in zip(*results, strict=True))
        iou = (intersection / union * 100).tolist()
        self.class_iou = dict(zip(self.dataset_meta['classes'], iou, strict=True))
        return super().compute_metrics(results)
