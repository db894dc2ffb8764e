"""mmdet's COCO metric for runs whose first validation detects nothing. Needs mmdet."""

from mmdet.evaluation import CocoMetric
from mmengine.registry import METRICS

KINDS = ('bbox', 'segm')
ITEMS = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l')


@METRICS.register_module()
class CocoAPMetric(CocoMetric):
    """mmdet's ``CocoMetric``, which gives 0 instead of nothing where no object was detected.

    The arguments are those of ``CocoMetric``.
    """

    def compute_metrics(self, results: list) -> dict[str, float]:
        metrics = super().compute_metrics(results)
        if self.format_only:
            return metrics
        for kind in self.metrics:
            if kind in KINDS and not any(name.startswith(kind) for name in metrics):
                metrics |= {f'{kind}_{item}': 0.0 for item in self.metric_items or ITEMS}
        return metrics
