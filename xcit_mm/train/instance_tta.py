"""Test-time augmentation of detectors: merged boxes and masks of several views. Needs mmdet."""

from collections.abc import Sequence

from mmcv.ops import batched_nms
from mmdet.models.test_time_augs import DetTTAModel
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox_flip
from mmengine.registry import MODELS
from mmengine.structures import InstanceData

MASK_AXES = {'horizontal': [2], 'vertical': [1], 'diagonal': [1, 2]}


@MODELS.register_module()
class InstanceTTAModel(DetTTAModel):
    """mmdet's ``DetTTAModel``, but it merges masks as well.

    Non-maximum suppression merges the objects of all views, and each object that it keeps has the
    box, score and mask of its view. It has the arguments of ``DetTTAModel``.
    """

    def _merge_single_sample(self, data_samples: Sequence[DetDataSample]) -> DetDataSample:
        merged = data_samples[0]
        instances = InstanceData.cat([_unflipped(sample) for sample in data_samples])
        if len(instances):
            boxes = instances.bboxes, instances.scores, instances.labels
            kept, indices = batched_nms(*boxes, self.tta_cfg['nms'])
            instances = instances[indices]
            instances.scores = kept[:, -1]  # soft suppression changes them
            instances = instances[: self.tta_cfg['max_per_img']]
        merged.pred_instances = instances
        return merged


def _unflipped(sample: DetDataSample) -> InstanceData:
    instances = sample.pred_instances
    if sample.flip:
        direction = sample.flip_direction
        instances.bboxes = bbox_flip(instances.bboxes, sample.ori_shape, direction)
        if 'masks' in instances:
            instances.masks = instances.masks.flip(MASK_AXES[direction])
    return instances
