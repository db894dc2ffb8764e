"""Non-maximum suppression: hard, soft, in groups, and of lanes.

Boxes are x1, y1, x2, y2; with ``offset=1``, x2 and y2 are the last pixels inside the box.
"""

import torch
from torch import Tensor

from .gradients import at_least_float32


def nms(bboxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Return the indices of the boxes (n, 4) that no better box overlaps, best first."""
    import torchvision  # noqa: F401  registers torch.ops.torchvision

    boxes, scores = at_least_float32(_extended(bboxes, offset), scores)
    return torch.ops.torchvision.nms(boxes, scores, iou_threshold)


def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Lower the scores of overlapping boxes (Soft-NMS, Bodla et al. 2017) and fill ``dets`` (n, 5).

    Returns the indices of the kept boxes, best first. ``method``: 0 naive, 1 linear, 2 gaussian.
    """
    from torchvision.ops import box_iou

    extended = _extended(boxes, offset)
    scores = scores.clone()
    candidates = torch.arange(len(boxes))
    chosen: list[int] = []
    while len(candidates):
        best = candidates[scores[candidates].argmax()]
        dets[len(chosen), :4], dets[len(chosen), 4] = boxes[best], scores[best]
        chosen.append(int(best))
        candidates = candidates[candidates != best]
        iou = box_iou(extended[best][None], extended[candidates])[0]
        if method == 0:
            factor = (iou < iou_threshold).to(scores)
        elif method == 1:
            factor = torch.where(iou >= iou_threshold, 1 - iou, 1.0)
        else:
            factor = torch.exp(-(iou * iou) / sigma)
        scores[candidates] *= factor
        candidates = candidates[scores[candidates] >= min_score]
    return torch.tensor(chosen, dtype=torch.int64)


def nms_match(dets: Tensor, iou_threshold: float) -> list[list[int]]:
    """Group the boxes with scores (n, 5), each kept box first and then those that it overlaps."""
    from torchvision.ops import box_iou

    candidates = dets[:, 4].argsort(descending=True)
    groups = []
    while len(candidates):
        best, others = candidates[0], candidates[1:]
        is_overlapped = box_iou(dets[best, :4][None], dets[others, :4])[0] >= iou_threshold
        groups.append([int(best), *others[is_overlapped].tolist()])
        candidates = others[~is_overlapped]
    return groups


def line_nms_forward(
    boxes: Tensor, scores: Tensor, overlap: float, top_k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Keep the best of lanes that are less than ``overlap`` pixels apart (CLRNet, section 3.4).

    A lane (5 + offsets) has its start as a fraction of the height at 2, its length in offsets at 4,
    and x at each height from 5. Returns the indices of the kept lanes, best first and padded with
    zeros; their number; and for each lane, the rank, from 1, of the last kept lane that is close.
    """
    n, offsets = len(boxes), boxes.shape[1] - 5
    start = (boxes[:, 2] * (offsets - 1) + 0.5).int()
    end = start + boxes[:, 4].int() - 1
    heights = torch.arange(offsets, device=boxes.device)
    order = scores.argsort(descending=True)
    keep, parent = (torch.zeros(n, dtype=torch.int64, device=boxes.device) for _ in range(2))
    is_left = torch.ones(n, dtype=torch.bool, device=boxes.device)
    number = 0
    while number < top_k and is_left.any():
        place = int(is_left.int().argmax())
        best, others = order[place], order[place + 1 :]
        first = torch.maximum(start[best], start[others])
        last = torch.minimum(end[best], end[others]).clamp(max=offsets - 1)
        is_common = (heights >= first[:, None]) & (heights <= last[:, None])
        apart = (boxes[others, 5:] - boxes[best, 5:]).abs().where(is_common, 0).sum(1)
        is_close = (apart < overlap * (last - first + 1)) & (last >= first) & (first >= 0)
        keep[number], number = best, number + 1
        parent[best] = parent[others[is_close]] = number
        is_left[place] = False
        is_left[place + 1 :] &= ~is_close
    return keep, torch.tensor(number, device=boxes.device), parent


def _extended(boxes: Tensor, offset: int) -> Tensor:
    return torch.cat((boxes[:, :2], boxes[:, 2:] + offset), dim=1)
