"""Non-maximum suppression, hard and soft."""

import torch
from torch import Tensor


def nms(bboxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Return the indices of the boxes that no better box overlaps, best first.

    Args:
        bboxes: (n, 4) corners x1, y1, x2, y2 in pixels.
        scores: (n,).
        iou_threshold: IoU with a better box above which a box is removed.
        offset: 1 if x2 and y2 are the last pixels inside the box, else 0.
    """
    import torchvision  # noqa: F401  registers torch.ops.torchvision

    if offset:
        bboxes = torch.cat((bboxes[:, :2], bboxes[:, 2:] + offset), dim=1)
    return torch.ops.torchvision.nms(bboxes, scores, iou_threshold)


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
    """Lower the scores of overlapping boxes (Soft-NMS, Bodla et al. 2017); return the kept ones.

    Args:
        boxes: (n, 4) corners x1, y1, x2, y2 in pixels, on the CPU as in mmcv.
        scores: (n,).
        dets: (n, 5), filled with the kept boxes and their new scores, best first.
        iou_threshold: Threshold of methods 0 and 1.
        sigma: Width of method 2.
        min_score: Score below which a box is dropped.
        method: Factor of a box's score. 0, naive: 0 above the threshold. 1, linear: 1 - IoU from
            the threshold on. 2, gaussian: exp(-IoU**2 / sigma) for every box.
        offset: 1 if x2 and y2 are the last pixels inside the box, else 0.
    """
    scores = scores.clone()
    candidates = torch.arange(len(boxes))
    areas = (boxes[:, 2:] - boxes[:, :2] + offset).prod(dim=1)
    kept: list[int] = []
    while len(candidates):
        best = candidates[scores[candidates].argmax()]
        dets[len(kept), :4] = boxes[best]
        dets[len(kept), 4] = scores[best]
        kept.append(int(best))
        candidates = candidates[candidates != best]
        top_left = torch.maximum(boxes[candidates, :2], boxes[best, :2])
        bottom_right = torch.minimum(boxes[candidates, 2:], boxes[best, 2:])
        overlap = (bottom_right - top_left + offset).clamp(min=0).prod(dim=1)
        iou = overlap / (areas[candidates] + areas[best] - overlap)
        if method == 0:
            factor = (iou < iou_threshold).to(scores)
        elif method == 1:
            factor = torch.where(iou >= iou_threshold, 1 - iou, torch.ones_like(iou))
        else:
            factor = torch.exp(-(iou * iou) / sigma)
        scores[candidates] *= factor
        candidates = candidates[scores[candidates] >= min_score]
    return torch.tensor(kept, dtype=torch.int64)
