"""Non-maximum suppression, hard and soft.

Boxes are x1, y1, x2, y2; with ``offset=1``, x2 and y2 are the last pixels inside the box.
"""

import torch
from torch import Tensor


def nms(bboxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Return the indices of the boxes (n, 4) that no better box overlaps, best first."""
    import torchvision  # noqa: F401  registers torch.ops.torchvision

    return torch.ops.torchvision.nms(_extended(bboxes, offset), scores, iou_threshold)


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
    kept: list[int] = []
    while len(candidates):
        best = candidates[scores[candidates].argmax()]
        dets[len(kept), :4], dets[len(kept), 4] = boxes[best], scores[best]
        kept.append(int(best))
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
    return torch.tensor(kept, dtype=torch.int64)


def _extended(boxes: Tensor, offset: int) -> Tensor:
    return torch.cat((boxes[:, :2], boxes[:, 2:] + offset), dim=1)
