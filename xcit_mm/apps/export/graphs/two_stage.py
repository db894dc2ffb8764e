"""Mask R-CNN, Faster R-CNN and their cascades, in operators that every runtime has.

mmdet's post-processing asks in Python how many boxes there are. A graph cannot do that. Here the
numbers of proposals and of objects are fixed at the maximum that ``test_cfg`` allows. Blank boxes
fill up the rest, and are removed at the end.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .boxes import NO_SCORE, are_larger, best, border_of, clip, nms
from .detector import ThresholdGraph, require_nms


class TwoStageGraph(ThresholdGraph):
    """The objects of an image, with their masks (n, M, M) if the model has them.

    A mask is the probability that a place in the box belongs to the object. The stages of a cascade
    refine the boxes one after the other, and average their logits and masks.
    """

    NARROW = ('backbone', 'neck', 'rpn_head', 'roi_head.bbox_head', 'roi_head.mask_head')
    HEADS = {
        'rpn_head': ('RPNHead', 'BatchedRPNHead'),
        'roi_head': ('StandardRoIHead', 'BatchedRoIHead', 'CascadeRoIHead'),
    }

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, model.test_cfg.rcnn)
        require_nms(model.test_cfg.rpn)
        self.with_mask = model.roi_head.with_mask
        if self.with_mask:
            self.outputs = (*self.outputs, 'masks')

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        maps, boxes, scores, labels = self._candidates(image)
        above = scores > self.score_thr
        boxes, scores, labels = nms(boxes[above], scores[above], labels[above], self.test_cfg)
        real = scores > NO_SCORE
        objects = boxes[real], scores[real], labels[real]
        if not self.with_mask:
            return objects
        # Not every runtime can convolve an empty batch, so the mask head gets at least one box.
        computed = torch.cat([torch.ones_like(real[:1]), real[1:]])
        return *objects, self._masks(maps, boxes[computed], labels[computed])[real[computed]]

    def reference(self, image: Tensor) -> tuple[Tensor, ...]:
        """Compute objects with mmdet, and the masks of their boxes: mmdet has pasted ones only."""
        outputs = super().reference(image)
        if not self.with_mask:
            return outputs
        boxes, _, labels = outputs
        if not len(boxes):
            return *outputs, *self(image)[3:]
        maps = self.model.extract_feat(self.pad(self.normalize(image)))
        return *outputs, self._masks(maps, boxes, labels)

    def scores(self, image: Tensor) -> Tensor:
        return self._candidates(image)[2]

    def _propose(self, maps: tuple[Tensor, ...], border: Tensor) -> tuple[Tensor, Tensor]:
        """Return the proposals of the RPN (n, 4), and which of them are not blank (n,)."""
        head, cfg = self.model.rpn_head, self.model.test_cfg.rpn
        logits, deltas = head(maps)
        sizes = [m.shape[2:] for m in logits]
        anchors = head.prior_generator.grid_priors(sizes, device=border.device)
        levels = []
        for level, (logit, delta, anchor) in enumerate(zip(logits, deltas, anchors, strict=True)):
            score = logit[0].permute(1, 2, 0).flatten().sigmoid()
            delta = delta[0].permute(1, 2, 0).reshape(-1, 4)
            score, delta, anchor = best(score, cfg.nms_pre, delta, anchor)
            levels.append((score, delta, anchor, torch.full_like(score, level)))
        score, delta, anchor, level = (torch.cat(t) for t in zip(*levels, strict=True))
        boxes = clip(head.bbox_coder.decode(anchor, delta), border)
        large = are_larger(boxes, max(cfg.get('min_bbox_size', 0), 0))
        boxes, score, level = boxes[large], score[large], level[large]
        boxes, score, _ = nms(boxes, score, level, cfg)
        return boxes, score > NO_SCORE

    def _candidates(self, image: Tensor) -> tuple[tuple[Tensor, ...], Tensor, Tensor, Tensor]:
        """Return the maps, and for each proposal and class a box (n, 4), score and label (n,)."""
        maps = self.model.extract_feat(self.pad(self.normalize(image)))
        border = border_of(image)
        regions, real = self._propose(maps, border)
        roi_head = self.model.roi_head
        stages = _stages(roi_head.bbox_roi_extractor, roi_head.bbox_head)
        logits = 0.0
        for number, (extractor, head) in enumerate(stages, 1):
            stage_logits, deltas = head(_roi_align(extractor, maps, regions))
            logits = logits + stage_logits / len(stages)
            deltas = deltas.view(deltas.shape[0], -1, 4)
            if number < len(stages):
                if not head.reg_class_agnostic:
                    label = stage_logits[:, :-1].argmax(1)
                    deltas = deltas.gather(1, label[:, None, None].expand(-1, 1, 4))
                regions = clip(head.bbox_coder.decode(regions, deltas[:, 0]), border)
        scores = torch.where(real[:, None], logits.softmax(-1)[:, :-1], NO_SCORE)
        num_classes = scores.shape[1]
        deltas = deltas.expand(-1, num_classes, -1)
        regions = regions[:, None].expand(-1, num_classes, -1)
        boxes = head.bbox_coder.decode(regions.reshape(-1, 4), deltas.reshape(-1, 4))
        labels = torch.arange(num_classes, device=scores.device).repeat(regions.shape[0])
        return maps, clip(boxes, border), scores.flatten(), labels

    def _masks(self, maps: tuple[Tensor, ...], boxes: Tensor, labels: Tensor) -> Tensor:
        roi_head = self.model.roi_head
        stages = _stages(roi_head.mask_roi_extractor, roi_head.mask_head)
        average = 0.0
        for extractor, head in stages:
            masks = head(_roi_align(extractor, maps, boxes))
            if not head.class_agnostic:
                index = labels[:, None, None, None].expand(-1, 1, *masks.shape[2:])
                masks = masks.gather(1, index)
            average = average + masks[:, 0].sigmoid() / len(stages)
        return average


def _stages(extractor: nn.Module, head: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """Return the extractor and the head of each stage of a cascade, or of the only stage."""
    if not isinstance(head, nn.ModuleList):
        return [(extractor, head)]
    return list(zip(extractor, head, strict=True))


def _roi_align(extractor: nn.Module, maps: tuple[Tensor, ...], boxes: Tensor) -> Tensor:
    """Return (n, C, size, size), with each box cut out of the map of its level."""
    rois = F.pad(boxes, (1, 0))  # all of image 0
    levels = extractor.map_roi_levels(rois, extractor.num_inputs)
    features = 0.0
    for level, (layer, m) in enumerate(zip(extractor.roi_layers, maps, strict=False)):
        here = levels == level
        regions = torch.ops.torchvision.roi_align(
            m,
            torch.where(here[:, None], rois, 0.0),  # regions of other levels would be large
            layer.spatial_scale,
            *layer.output_size,
            layer.sampling_ratio,
            layer.aligned,
        )
        features = torch.where(here[:, None, None, None], regions, features)
    return features
