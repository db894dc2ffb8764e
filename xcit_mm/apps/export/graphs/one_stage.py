"""RetinaNet and RTMDet, with fixed numbers of boxes as in :mod:`.two_stage`."""

import torch
from torch import Tensor, nn

from .boxes import NO_SCORE, are_larger, best, border_of, clip, nms
from .detector import ThresholdGraph


class OneStageGraph(ThresholdGraph):
    """The objects of an image that a head finds in all places of the maps."""

    NARROW = ('backbone', 'neck', 'bbox_head')
    HEADS = {'bbox_head': ('RetinaHead', 'RetinaSepBNHead', 'RTMDetHead', 'RTMDetSepBNHead')}

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, model.bbox_head.test_cfg)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        head, cfg = self.model.bbox_head, self.test_cfg
        levels = []
        for scores, deltas, priors in self._levels(image):
            num_classes = scores.shape[1]
            scores = scores.flatten()
            (places,) = (scores > self.score_thr).nonzero().unbind(1)
            scores, places = best(scores[places], cfg.nms_pre, places)
            index = places // num_classes
            levels.append((scores, places % num_classes, deltas[index], priors[index]))
        scores, labels, deltas, priors = (torch.cat(t) for t in zip(*levels, strict=True))
        boxes = clip(head.bbox_coder.decode(priors, deltas), border_of(image))
        real = (scores > NO_SCORE) & are_larger(boxes, cfg.get('min_bbox_size', -1))
        boxes, scores, labels = nms(boxes[real], scores[real], labels[real], cfg)
        real = scores > NO_SCORE
        return boxes[real], scores[real], labels[real]

    def scores(self, image: Tensor) -> Tensor:
        return torch.cat([scores.flatten() for scores, _, _ in self._levels(image)])

    def _levels(self, image: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return scores (n, K), box deltas (n, 4) and anchors or points (n, ...) of each map."""
        head = self.model.bbox_head
        logits, deltas = head(self.model.extract_feat(self.pad(self.normalize(image))))
        sizes = [m.shape[2:] for m in logits]
        priors = head.prior_generator.grid_priors(sizes, device=image.device)
        levels = []
        for logit, delta, prior in zip(logits, deltas, priors, strict=True):
            logit = logit[0].permute(1, 2, 0).reshape(-1, head.cls_out_channels)
            scores = logit.sigmoid() if head.use_sigmoid_cls else logit.softmax(-1)[:, :-1]
            levels.append((scores, delta[0].permute(1, 2, 0).reshape(-1, 4), prior))
        return levels
