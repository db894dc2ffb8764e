"""Labels that belong to no class, and heights without a logarithm, refused before the loss."""

from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import nn

from ...base.errors import UserError
from ...data.datasets.labels import LabelRule, of_color_image
from ...data.transforms.height_labels import HeightRule
from ..distributed import unwrapped
from . import order


@HOOKS.register_module()
class LabelCheckHook(Hook):
    """Stop at a label outside the classes of the segmentor, with its file and value.

    Also stop a training at a height that is not positive if the loss needs its logarithm.

    On a GPU the loss would end in a device-side assert that names neither, and the IoU ignores such
    pixels silently.
    """

    priority = order.LABELS

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: dict) -> None:
        model = unwrapped(runner.model)
        has_views = isinstance(model, BaseTTAModel)
        head = getattr(model.module if has_views else model, 'decode_head', None)
        if head is None:
            return
        head = head[-1] if isinstance(head, nn.ModuleList) else head
        samples = data_batch['data_samples']
        for sample in samples[0] if has_views else samples:  # all views have the same labels
            if 'label_windows' in sample:  # of a large image
                sample.label_windows.require_classes(_rule(head))
            if 'gt_depth_map' in sample and head.training:  # an evaluation needs no loss
                _require_heights(head, sample)
            labels = sample.gt_sem_seg.data if 'gt_sem_seg' in sample else None
            if labels is None:
                continue
            rule = _rule(head)
            if labels.ndim != 3 or len(labels) != 1:
                raise UserError(of_color_image(sample.seg_map_path, tuple(labels.shape)))
            wrong = rule.broken_by(labels)
            if len(wrong):
                reduce_zero_label = bool(sample.get('reduce_zero_label'))
                refusal = rule.refusal(int(wrong[0]), sample.seg_map_path, reduce_zero_label)
                raise UserError(refusal)

    before_val_iter = before_test_iter = before_train_iter


def _rule(head: nn.Module) -> LabelRule:
    return LabelRule.of_head(head.num_classes, head.out_channels, head.ignore_index)


def _require_heights(head: nn.Module, sample: BaseDataElement) -> None:
    rule = HeightRule.of_losses(type(module).__name__ for module in head.modules())
    wrong = rule.broken_by(sample.gt_depth_map.data)
    if len(wrong):
        raise UserError(rule.refusal(float(wrong[0]), sample.seg_map_path))
