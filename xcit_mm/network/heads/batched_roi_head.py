"""The losses of the heads of regions for all images at once."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from mmdet.models.losses import CrossEntropyLoss, accuracy
from mmdet.models.roi_heads import StandardRoIHead
from mmdet.models.roi_heads.bbox_heads import BBoxHead
from mmdet.models.roi_heads.mask_heads import FCNMaskHead
from mmdet.models.utils import unpack_gt_instances
from mmengine.registry import MODELS
from mmengine.structures import InstanceData
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .box_deltas import can_code, encode
from .box_losses import box_loss, can_compute
from .mask_targets import are_bitmaps, mask_targets, on_device
from .matching import IGNORED, are_plain, can_match, first_ones, match, pad_objects
from .random_samples import can_sample, sample
from .regions import Regions, by_level, can_extract
from .transfers import to_device


@MODELS.register_module()
class BatchedRoIHead(StandardRoIHead):
    """mmdet's StandardRoIHead, whose losses are computed for all images at once.

    A training step waits for the GPU once, for the numbers of samples on each level. Losses equal
    those of ``StandardRoIHead`` for the same samples, which are drawn from other random numbers
    (:mod:`.random_samples`). In 16 bits, regions keep their corners in float32. Predictions,
    streamed images, and trainings with parts that the recipes do not use are computed by
    ``StandardRoIHead`` itself.

    It has the arguments, the parameters and their names of ``StandardRoIHead``.
    """

    def loss(
        self,
        x: tuple[Tensor, ...],
        rpn_results_list: Sequence[InstanceData],
        batch_data_samples: Sequence[Any],
    ) -> dict[str, Tensor]:
        """Return the losses of boxes and masks; see mmdet's ``StandardRoIHead``."""
        objects, ignored, _ = unpack_gt_instances(batch_data_samples)
        if not (
            self._is_batched()
            and all(isinstance(each, Tensor) for each in x)  # a streamed image has lazy maps
            and are_plain(self.bbox_assigner, objects, ignored)
            and sum(map(len, rpn_results_list)) > 0
            and (not self.with_mask or are_bitmaps([each.masks for each in objects]))
        ):
            return super().loss(x, rpn_results_list, batch_data_samples)
        device, with_mask = x[0].device, self.with_mask
        masks = on_device([each.masks for each in objects], device) if with_mask else None
        with torch.no_grad():
            targets = self._targets([each.bboxes for each in rpn_results_list], objects)
            groups = [targets.are_valid] + [targets.are_positive] * with_mask
            regions = by_level(self.bbox_roi_extractor, targets.boxes, groups)
        # mmdet rounds the corners of regions to the dtype of the maps, by 4 pixels in bfloat16.
        maps = [each.float() for each in x[: self.bbox_roi_extractor.num_inputs]]
        losses = self._box_losses(maps, regions[0], targets)
        if with_mask:
            losses |= self._mask_losses(maps, regions[1], targets, masks)
        return losses

    def _is_batched(self) -> bool:
        """Return whether the head is built of parts whose losses are known here."""
        boxes = self.bbox_head if self.with_bbox else None
        are_known = (
            isinstance(boxes, BBoxHead)
            and type(boxes).loss_and_target is BBoxHead.loss_and_target
            and boxes.with_cls
            and boxes.with_reg
            and not (boxes.reg_decoded_bbox or boxes.custom_activation)
            and can_code(boxes.bbox_coder)
            and can_compute(boxes.loss_bbox)
            and type(boxes.loss_cls) is CrossEntropyLoss
            and can_match(self.bbox_assigner)
            and can_sample(self.bbox_sampler)
            and can_extract(self.bbox_roi_extractor)
            and not self.with_shared_head
            and next(self.parameters()).dtype is torch.float32
        )
        if not (are_known and self.with_mask):
            return are_known
        mask, extractor = self.mask_head, self.mask_roi_extractor
        return (
            isinstance(mask, FCNMaskHead)
            and type(mask).loss_and_target is FCNMaskHead.loss_and_target
            and type(mask.loss_mask) is CrossEntropyLoss
            and not (self.share_roi_extractor or self.train_cfg.get('soft_mask_target', False))
            and isinstance(self.train_cfg.mask_size, int)
            and can_extract(extractor)
            and extractor.featmap_strides == self.bbox_roi_extractor.featmap_strides
            and extractor.finest_scale == self.bbox_roi_extractor.finest_scale
        )

    def _targets(self, proposals: Sequence[Tensor], objects: Sequence[InstanceData]) -> '_Targets':
        """Assign and sample proposals (n, 4) and objects of each image."""
        boxes, labels, exist = pad_objects(objects)
        boxes = boxes.float()
        proposed = pad_sequence(list(proposals), batch_first=True).float()
        are_proposed = first_ones([len(each) for each in proposals], boxes.device)
        assigned = match(self.bbox_assigner, proposed, are_proposed, boxes, exist)
        if self.bbox_sampler.add_gt_as_proposals:
            own = torch.arange(1, boxes.shape[1] + 1, device=boxes.device)
            assigned = torch.cat((torch.where(exist, own, IGNORED), assigned), dim=1)
            proposed = torch.cat((boxes, proposed), dim=1)
        positive, negative = sample(self.bbox_sampler, assigned)
        index = torch.cat((positive.index, negative.index), dim=1)  # (B, K)
        are_valid = torch.cat((positive.are_valid, negative.are_valid), dim=1)
        number = assigned.gather(1, index).sub_(1)
        are_positive = are_valid & (number >= 0)
        number = number.clamp_(min=0)
        image = torch.arange(len(boxes), device=boxes.device)[:, None]
        counts = [0, *(len(each) for each in objects[:-1])]
        first = to_device(list(accumulate(counts)), torch.long, boxes.device)  # of each image
        candidates = proposed.gather(1, index[..., None].expand(-1, -1, 4))
        of_images = (
            torch.cat((image.expand_as(index)[..., None].to(candidates), candidates), dim=-1),
            boxes.gather(1, number[..., None].expand(-1, -1, 4)),
            labels.gather(1, number),
            first[:, None] + number,
            are_positive,
            are_valid,
        )
        return _Targets(*(values.flatten(0, 1) for values in of_images))

    def _box_losses(self, x: Sequence[Tensor], regions: Regions, targets: '_Targets') -> dict:
        head = self.bbox_head
        scores, deltas = head(regions.extract(self.bbox_roi_extractor, x))
        with torch.no_grad():
            rows, count = regions.rows, len(regions.rows)
            is_positive = targets.are_positive[rows]
            labels = targets.labels[rows].where(is_positive, head.num_classes)
            weights = torch.ones_like(scores[:, 0], dtype=torch.float32)
            if self.train_cfg.pos_weight > 0:
                weights = weights.where(~is_positive, self.train_cfg.pos_weight)
            wanted = encode(head.bbox_coder, targets.boxes[rows, 1:], targets.objects[rows])
            wanted = wanted.where(is_positive[:, None], 0)
        deltas = deltas.view(count, deltas.shape[1] // 4, 4)
        if head.reg_class_agnostic:
            deltas = deltas[:, 0]
        else:
            number = labels.clamp(max=head.num_classes - 1)[:, None, None].expand(-1, 1, 4)
            deltas = deltas.gather(1, number)[:, 0]
        options = dict(avg_factor=max(count, 1))
        return dict(
            loss_cls=head.loss_cls(scores, labels, weights, **options),
            acc=accuracy(scores, labels),
            loss_bbox=box_loss(head.loss_bbox, deltas, wanted, is_positive, count),
        )

    def _mask_losses(
        self, x: Sequence[Tensor], regions: Regions, targets: '_Targets', masks: Tensor
    ) -> dict:
        head, rows = self.mask_head, regions.rows
        predicted = head(regions.extract(self.mask_roi_extractor, x))
        if not len(rows):
            return dict(loss_mask=predicted.sum())
        with torch.no_grad():
            size = self.train_cfg.mask_size
            wanted = mask_targets(masks, regions.boxes[:, 1:], targets.numbers[rows], size)
            labels = targets.labels[rows]
            labels = torch.zeros_like(labels) if head.class_agnostic else labels
        return dict(loss_mask=head.loss_mask(predicted, wanted, labels))


class _Targets(NamedTuple):
    """The sampled boxes of all images, K in each, of which some are not valid.

    Attributes:
        boxes: (B K, 5), the number of the image and the corners in pixels.
        objects: (B K, 4), the box of the object that each box is assigned to.
        labels: (B K,), its class.
        numbers: (B K,), its number among the objects of all images.
        are_positive: (B K,), whether the box is assigned to an object.
        are_valid: (B K,), whether the box is sampled.
    """

    boxes: Tensor
    objects: Tensor
    labels: Tensor
    numbers: Tensor
    are_positive: Tensor
    are_valid: Tensor
