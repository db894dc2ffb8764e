"""Assignment of boxes to objects for all images at once, as mmdet's MaxIoUAssigner does it."""

from collections.abc import Sequence

import torch
from mmdet.models.task_modules.assigners import MaxIoUAssigner
from mmdet.structures.bbox import bbox_overlaps
from mmengine.structures import InstanceData
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .transfers import to_device

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


def are_plain(
    assigner: MaxIoUAssigner,
    objects: Sequence[InstanceData],
    ignored: Sequence[InstanceData | None],
) -> bool:
    """Return whether boxes are tensors, and no region is ignored."""
    if assigner.ignore_iof_thr > 0 and any(each is not None and len(each) for each in ignored):
        return False
    return all(isinstance(each.bboxes, Tensor) for each in objects)


def pad_objects(objects: Sequence[InstanceData]) -> tuple[Tensor, Tensor, Tensor]:
    """Return boxes (B, G, 4), labels (B, G) and which of them exist (B, G), G >= 1."""
    boxes, labels = ([getattr(each, name) for each in objects] for name in ('bboxes', 'labels'))
    # One object that does not exist gives the tensors their size where no image has any.
    blank = boxes[0].new_zeros(1, 4), labels[0].new_zeros(1)
    padded = (
        pad_sequence([none, *values], batch_first=True)[1:]
        for none, values in zip(blank, (boxes, labels), strict=True)
    )
    return *padded, first_ones([len(each) for each in objects], boxes[0].device)


def first_ones(counts: Sequence[int], device: torch.device) -> Tensor:
    """Return (B, N) bool whose rows begin with these numbers of ones, N the largest one or 1."""
    place = torch.arange(max(1, *counts), device=device)
    return place < to_device(counts, torch.long, device)[:, None]


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
    if len(exist) > 1 and exist.numel() * boxes.shape[1] > MAX_OVERLAPS:
        valid = [None] * len(exist) if are_valid is None else are_valid.split(1)
        of_images = zip(boxes.split(1), valid, objects.split(1), exist.split(1), strict=True)
        return torch.cat([match(assigner, *of_image) for of_image in of_images])
    overlaps = bbox_overlaps(objects, boxes)  # (B, G, N)
    overlaps.masked_fill_(~exist[..., None], -1)
    if are_valid is not None:
        overlaps.masked_fill_(~are_valid[:, None], -1)
    best, nearest = overlaps.max(dim=1)
    best = best.clamp_(min=0)  # without objects, everything is background
    assigned = (best < assigner.neg_iou_thr).long() + IGNORED  # or BACKGROUND
    assigned = torch.where(best >= assigner.pos_iou_thr, nearest + 1, assigned)
    if assigner.match_low_quality:
        highest, place = overlaps.max(dim=2, keepdim=True)  # of each object
        is_low = highest < max(assigner.min_pos_iou, 0)
        if assigner.gt_max_assign_all:
            is_best = overlaps == highest.masked_fill_(is_low, 2)  # 2: none, as overlaps are <= 1
        else:
            order = torch.arange(overlaps.shape[2], device=place.device)
            is_best = order == place.masked_fill_(is_low, -1)
        number = torch.arange(1, overlaps.shape[1] + 1, dtype=torch.int32, device=place.device)
        last = (is_best * number[:, None]).amax(dim=1)  # a later object wins, as in mmdet
        assigned = torch.where(last > 0, last, assigned)
    return assigned if are_valid is None else assigned.where(are_valid, IGNORED)
