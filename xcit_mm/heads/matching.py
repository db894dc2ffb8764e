"""Assignment of boxes to objects for all images at once, as mmdet's MaxIoUAssigner does it."""

from collections.abc import Sequence

import torch
from mmdet.models.task_modules.assigners import MaxIoUAssigner
from mmdet.structures.bbox import bbox_overlaps
from mmengine.structures import InstanceData
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

IGNORED, BACKGROUND = -1, 0
# Overlaps of one call: more than these are computed image by image, in 0.6 GB at most.
MAX_OVERLAPS = 2**24


def can_match(assigner: object) -> bool:
    """Return whether :func:`match` does what an assigner does."""
    return (
        type(assigner) is MaxIoUAssigner
        and isinstance(assigner.neg_iou_thr, float)
        and assigner.gpu_assign_thr <= 0
        and assigner.perm_repeat_gt_cfg is None
        and type(assigner.iou_calculator).__name__ == 'BboxOverlaps2D'
        and assigner.iou_calculator.dtype is None
    )


def pad_objects(objects: Sequence[InstanceData]) -> tuple[Tensor, Tensor, Tensor]:
    """Return boxes (B, G, 4), labels (B, G) and which of them exist (B, G), G >= 1."""
    # One object that does not exist gives the tensors their size where no image has any.
    none = objects[0].bboxes.new_zeros(1, 4)
    boxes = pad_sequence([none, *(each.bboxes for each in objects)], batch_first=True)[1:]
    labels = pad_sequence([none[:, 0].long(), *(each.labels for each in objects)], batch_first=True)
    exist = [each.labels.new_ones(len(each), dtype=torch.bool) for each in objects]
    exist = pad_sequence([none[:, 0].bool(), *exist], batch_first=True)
    return boxes, labels[1:], exist[1:]


def match(
    assigner: MaxIoUAssigner,
    boxes: Tensor,
    are_valid: Tensor | None,
    objects: Tensor,
    exist: Tensor,
) -> Tensor:
    """Assign each box to an object, to the background or to nothing.

    Args:
        assigner: mmdet's assigner, for which :func:`can_match` is true.
        boxes: (N, 4), the same for all images, or (B, N, 4).
        are_valid: (B, N), the boxes that are assigned; None: all.
        objects: (B, G, 4).
        exist: (B, G), the objects that are not padding.

    Returns:
        (B, N): i + 1 for object i, ``BACKGROUND`` or ``IGNORED``.
    """
    boxes = boxes.expand(len(exist), -1, -1)
    are_valid = exist.new_ones(boxes.shape[:2]) if are_valid is None else are_valid
    if len(exist) > 1 and exist.numel() * boxes.shape[1] > MAX_OVERLAPS:
        of_images = zip(*(x.split(1) for x in (boxes, are_valid, objects, exist)), strict=True)
        return torch.cat([match(assigner, *of_image) for of_image in of_images])
    overlaps = bbox_overlaps(objects, boxes)  # (B, G, N)
    overlaps = overlaps.where(exist[..., None] & are_valid[:, None], -1)
    best, nearest = overlaps.max(dim=1)
    best = best.clamp_(min=0)  # without objects, everything is background
    assigned = torch.where(best < assigner.neg_iou_thr, BACKGROUND, IGNORED)
    assigned = torch.where(best >= assigner.pos_iou_thr, nearest + 1, assigned)
    if assigner.match_low_quality:
        highest, place = overlaps.max(dim=2, keepdim=True)  # of each object
        is_best = overlaps == highest
        if not assigner.gt_max_assign_all:
            is_best = place == torch.arange(overlaps.shape[2], device=place.device)
        is_best &= highest >= max(assigner.min_pos_iou, 0)
        number = torch.arange(1, overlaps.shape[1] + 1, device=place.device)[:, None]
        last = torch.where(is_best, number, 0).amax(dim=1)  # a later object wins, as in mmdet
        assigned = torch.where(last > 0, last, assigned)
    return assigned.where(are_valid, IGNORED)
