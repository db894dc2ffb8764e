"""Mask R-CNN and Faster R-CNN as one graph of operators that ONNX has.

mmdet's post-processing asks in Python how many boxes there are, which a graph cannot do. Here the
numbers of proposals and of objects are fixed at the maximum that ``test_cfg`` allows. Blank boxes
without a size and a score fill up the rest, and are removed at the end.
"""

import torch
import torchvision  # noqa: F401  registers torch.ops.torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import UserError
from .graphs import Graph

HEADS = dict(rpn_head='RPNHead', roi_head='StandardRoIHead')
NO_SCORE = 0.0  # of a blank box


class DetectorGraph(Graph):
    """The objects of one image (1, 3, H, W) in the order of their scores.

    They are boxes (n, 4) (left, top, right, bottom in pixels), scores (n,), labels (n,) and, if the
    model has them, masks (n, M, M): the probability that a place in the box belongs to the object.
    """

    batched = False

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        heads = [type(getattr(model, name, None)).__name__ for name in HEADS]
        if heads != list(HEADS.values()):
            raise UserError(
                f'{type(model).__name__} cannot be exported as a whole: only detectors with '
                f'{" and ".join(HEADS.values())} can; --part backbone exports its maps'
            )
        for stage in (model.test_cfg.rpn, model.test_cfg.rcnn):
            if stage.nms.type != 'nms':
                raise UserError(
                    f'{stage.nms.type} cannot be exported: set its type in test_cfg to nms, or '
                    'use --part backbone'
                )
        self.register_buffer('score_thr', torch.tensor(float(model.test_cfg.rcnn.score_thr)))
        masks = ('masks',) if model.roi_head.with_mask else ()
        self.outputs = ('boxes', 'scores', 'labels', *masks)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        maps, boxes, scores, labels = self._candidates(image)
        above = scores > self.score_thr
        cfg = self.model.test_cfg.rcnn
        boxes, scores, labels = _nms(
            boxes[above], scores[above], labels[above], cfg.nms.iou_threshold, cfg.max_per_img
        )
        real = scores > NO_SCORE
        objects = boxes[real], scores[real], labels[real]
        if not self.model.roi_head.with_mask:
            return objects
        # Not every runtime takes convolutions of nothing: the mask head gets at least one box.
        kept = torch.cat([torch.ones_like(real[:1]), real[1:]])
        return *objects, self._masks(maps, boxes[kept], labels[kept])[real[kept]]

    def reference(self, image: Tensor) -> tuple[Tensor, ...]:
        """Compute the objects with mmdet, and the masks of its boxes, which it only pastes."""
        from mmdet.structures import DetDataSample

        self.model.roi_head.test_cfg.score_thr = self.score_thr.item()
        sizes = dict.fromkeys(('img_shape', 'ori_shape'), tuple(image.shape[2:]))
        sample = DetDataSample(metainfo=dict(**sizes, scale_factor=(1.0, 1.0)))
        x = self._pad(self.normalize(image))
        objects = self.model.predict(x, [sample], rescale=False)[0].pred_instances
        outputs = objects.bboxes, objects.scores, objects.labels
        if not self.model.roi_head.with_mask or not len(objects):
            return *outputs, *self(image)[3:]
        return *outputs, self._masks(self.model.extract_feat(x), objects.bboxes, objects.labels)

    def lower_threshold(self, image: Tensor, number: int) -> None:
        """Lower the threshold of scores until a number of boxes is above it, before NMS."""
        _, _, scores, _ = self._candidates(image)
        self.score_thr.copy_(scores.topk(number + 1).values[-1])

    def _pad(self, x: Tensor) -> Tensor:
        divisor = getattr(self.model.data_preprocessor, 'pad_size_divisor', 1)
        H, W = x.shape[2:]
        bottom = (H + divisor - 1) // divisor * divisor - H
        right = (W + divisor - 1) // divisor * divisor - W
        return F.pad(x, (0, right, 0, bottom))

    def _propose(self, maps: tuple[Tensor, ...], border: Tensor) -> tuple[Tensor, Tensor]:
        """Return the proposals of the RPN (n, 4), and which of them are not blank (n,)."""
        head, cfg = self.model.rpn_head, self.model.test_cfg.rpn
        logits, deltas = head(maps)
        sizes = [m.shape[2:] for m in logits]
        anchors = head.prior_generator.grid_priors(sizes, device=border.device)
        levels = []
        for level, (logit, delta, anchor) in enumerate(zip(logits, deltas, anchors, strict=True)):
            score = logit[0].permute(1, 2, 0).flatten().sigmoid()
            score = torch.cat([score, score.new_full((cfg.nms_pre,), NO_SCORE)])
            score, best = score.topk(cfg.nms_pre)
            delta = delta[0].permute(1, 2, 0).reshape(-1, 4)
            delta, anchor = (
                torch.cat([t, t.new_zeros(cfg.nms_pre, 4)])[best] for t in (delta, anchor)
            )
            levels.append((score, delta, anchor, torch.full_like(score, level)))
        score, delta, anchor, level = (torch.cat(t) for t in zip(*levels, strict=True))
        boxes = _clip(head.bbox_coder.decode(anchor, delta), border)
        large = (boxes[:, 2:] - boxes[:, :2] > max(cfg.get('min_bbox_size', 0), 0)).all(1)
        boxes, score, level = boxes[large], score[large], level[large]
        boxes, score, _ = _nms(boxes, score, level, cfg.nms.iou_threshold, cfg.max_per_img)
        return boxes, score > NO_SCORE

    def _candidates(self, image: Tensor) -> tuple[tuple[Tensor, ...], Tensor, Tensor, Tensor]:
        """Return the maps, and for each proposal and class a box (n, 4), score and label (n,)."""
        maps = self.model.extract_feat(self._pad(self.normalize(image)))
        H, W = image.shape[2:]
        border = torch.cat([image.new_full((1,), side) for side in (W, H, W, H)])
        proposals, real = self._propose(maps, border)
        head = self.model.roi_head.bbox_head
        logits, deltas = head(_roi_align(self.model.roi_head.bbox_roi_extractor, maps, proposals))
        scores = torch.where(real[:, None], logits.softmax(-1)[:, :-1], NO_SCORE)
        num_classes = scores.shape[1]
        deltas = deltas.view(len(proposals), -1, 4).expand(-1, num_classes, -1)
        anchors = proposals[:, None].expand(-1, num_classes, -1)
        boxes = head.bbox_coder.decode(anchors.reshape(-1, 4), deltas.reshape(-1, 4))
        labels = torch.arange(num_classes, device=scores.device).repeat(len(proposals))
        return maps, _clip(boxes, border), scores.flatten(), labels

    def _masks(self, maps: tuple[Tensor, ...], boxes: Tensor, labels: Tensor) -> Tensor:
        head = self.model.roi_head.mask_head
        masks = head(_roi_align(self.model.roi_head.mask_roi_extractor, maps, boxes))
        if not head.class_agnostic:
            index = labels[:, None, None, None].expand(-1, 1, *masks.shape[2:])
            masks = masks.gather(1, index)
        return masks[:, 0].sigmoid()


def _clip(boxes: Tensor, border: Tensor) -> Tensor:
    return boxes.clamp(min=0).minimum(border)


def _nms(
    boxes: Tensor, scores: Tensor, groups: Tensor, iou_threshold: float, number: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best boxes of each group and blank boxes, ``number`` in all."""
    boxes, scores, groups = (
        torch.cat([t, t.new_zeros(1, *t.shape[1:])]) for t in (boxes, scores, groups)
    )
    offsets = groups.to(boxes) * (boxes.max() + 1)
    kept = torch.ops.torchvision.nms(boxes + offsets[:, None], scores, iou_threshold)
    blanks = torch.full((number,), -1, device=kept.device) + scores.shape[0]
    kept = torch.cat([kept, blanks])[:number]
    return boxes[kept], scores[kept], groups[kept]


def _roi_align(extractor: nn.Module, maps: tuple[Tensor, ...], boxes: Tensor) -> Tensor:
    """Return (n, C, size, size), with each box cut out of the map of its level."""
    rois = F.pad(boxes, (1, 0))  # all of image 0
    levels = extractor.map_roi_levels(rois, extractor.num_inputs)
    features = 0.0
    for level, (layer, m) in enumerate(zip(extractor.roi_layers, maps, strict=False)):
        here = levels == level
        regions = torch.ops.torchvision.roi_align(
            m,
            torch.where(here[:, None], rois, 0.0),  # those of other levels would be large
            layer.spatial_scale,
            *layer.output_size,
            layer.sampling_ratio,
            layer.aligned,
        )
        features = torch.where(here[:, None, None, None], regions, features)
    return features
