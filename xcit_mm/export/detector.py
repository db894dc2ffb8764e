"""Mask R-CNN and its like as one graph of operators that ONNX has.

mmdet's own post-processing asks in Python how many boxes there are, which a graph cannot. Here the
numbers of proposals and of objects are fixed at the most that ``test_cfg`` allows, and blank boxes
fill up what is missing: they have no size and no score, and are left out at the end.
"""

import torch
import torchvision  # noqa: F401  registers torch.ops.torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import UserError
from .graphs import Graph

HEADS = dict(rpn_head='RPNHead', roi_head='StandardRoIHead')
NO_SCORE = 0.0  # of a blank


class DetectorGraph(Graph):
    """The objects of one image, the surest first.

    Shape:
        (1, 3, H, W) to boxes (n, 4) (left, top, right, bottom in pixels), scores (n,), labels (n,)
        and, of a model with masks, masks (n, M, M): the probability that a place in the box belongs
        to the object.
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
                    '--part backbone'
                )
        self.register_buffer('score_thr', torch.tensor(float(model.test_cfg.rcnn.score_thr)))
        masks = ('masks',) if model.roi_head.with_mask else ()
        self.outputs = ('boxes', 'scores', 'labels', *masks)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        maps = self.model.extract_feat(self._padded(self.normalised(image)))
        boxes, scores, labels = self._candidates(maps, image)
        sure = scores > self.score_thr
        cfg = self.model.test_cfg.rcnn
        boxes, scores, labels = _best(
            boxes[sure], scores[sure], labels[sure], cfg.nms.iou_threshold, cfg.max_per_img
        )
        found = scores > NO_SCORE
        if not self.model.roi_head.with_mask:
            return boxes[found], scores[found], labels[found]
        # The mask head gets one at least: not every runtime takes convolutions of nothing.
        some = torch.cat([torch.ones_like(found[:1]), found[1:]])
        boxes, scores, labels, found = boxes[some], scores[some], labels[some], found[some]
        masks = self._masks(maps, boxes, labels)
        return boxes[found], scores[found], labels[found], masks[found]

    def reference(self, image: Tensor) -> tuple[Tensor, ...]:
        """As mmdet computes them; of the masks, whose values it does not give out, the boxes."""
        from mmdet.structures import DetDataSample

        self.model.roi_head.test_cfg.score_thr = self.score_thr.item()
        sizes = dict.fromkeys(('img_shape', 'ori_shape'), tuple(image.shape[2:]))
        sample = DetDataSample(metainfo=dict(**sizes, scale_factor=(1.0, 1.0)))
        x = self._padded(self.normalised(image))
        found = self.model.predict(x, [sample], rescale=False)[0].pred_instances
        if not self.model.roi_head.with_mask or not len(found):
            return found.bboxes, found.scores, found.labels, *self(image)[3:]
        masks = self._masks(self.model.extract_feat(x), found.bboxes, found.labels)
        return found.bboxes, found.scores, found.labels, masks

    def lower_threshold(self, image: Tensor, number: int) -> None:
        """Let so many boxes be sure enough, before those that overlap are left out."""
        _, scores, _ = self._candidates(
            self.model.extract_feat(self._padded(self.normalised(image))), image
        )
        self.score_thr.copy_(scores.topk(number + 1).values[-1])

    def _padded(self, x: Tensor) -> Tensor:
        divisor = getattr(self.model.data_preprocessor, 'pad_size_divisor', 1)
        H, W = x.shape[2:]
        bottom = (H + divisor - 1) // divisor * divisor - H
        right = (W + divisor - 1) // divisor * divisor - W
        return F.pad(x, (0, right, 0, bottom))

    def _propose(self, maps: tuple[Tensor, ...], border: Tensor) -> tuple[Tensor, Tensor]:
        """The regions that the RPN proposes, (n, 4), and which of them are no blanks, (n,)."""
        head, cfg = self.model.rpn_head, self.model.test_cfg.rpn
        logits, deltas = head(maps)
        places = head.prior_generator.grid_priors(
            [m.shape[2:] for m in logits], device=border.device
        )
        levels = []
        for level, (logit, delta, place) in enumerate(zip(logits, deltas, places, strict=True)):
            score = logit[0].permute(1, 2, 0).flatten().sigmoid()
            score = torch.cat([score, score.new_full((cfg.nms_pre,), NO_SCORE)])
            score, best = score.topk(cfg.nms_pre)
            delta = delta[0].permute(1, 2, 0).reshape(-1, 4)
            delta, place = (
                torch.cat([t, t.new_zeros(cfg.nms_pre, 4)])[best] for t in (delta, place)
            )
            levels.append((score, delta, place, torch.full_like(score, level)))
        score, delta, place, level = (torch.cat(t) for t in zip(*levels, strict=True))
        boxes = _clipped(head.bbox_coder.decode(place, delta), border)
        large = (boxes[:, 2:] - boxes[:, :2] > max(cfg.get('min_bbox_size', 0), 0)).all(1)
        boxes, score, level = boxes[large], score[large], level[large]
        boxes, score, _ = _best(boxes, score, level, cfg.nms.iou_threshold, cfg.max_per_img)
        return boxes, score > NO_SCORE

    def _candidates(self, maps: tuple[Tensor, ...], image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A box (n, 4), a score (n,) and a label (n,) of each class for each region."""
        H, W = image.shape[2:]
        border = torch.cat([image.new_full((1,), side) for side in (W, H, W, H)])
        proposals, real = self._propose(maps, border)
        head = self.model.roi_head.bbox_head
        logits, deltas = head(_regions(self.model.roi_head.bbox_roi_extractor, maps, proposals))
        scores = torch.where(real[:, None], logits.softmax(-1)[:, :-1], NO_SCORE)
        num_classes = scores.shape[1]
        deltas = deltas.view(len(proposals), -1, 4).expand(-1, num_classes, -1)
        places = proposals[:, None].expand(-1, num_classes, -1)
        boxes = head.bbox_coder.decode(places.reshape(-1, 4), deltas.reshape(-1, 4))
        labels = torch.arange(num_classes, device=scores.device).repeat(len(proposals))
        return _clipped(boxes, border), scores.flatten(), labels

    def _masks(self, maps: tuple[Tensor, ...], boxes: Tensor, labels: Tensor) -> Tensor:
        head = self.model.roi_head.mask_head
        masks = head(_regions(self.model.roi_head.mask_roi_extractor, maps, boxes))
        if not head.class_agnostic:
            index = labels[:, None, None, None].expand(-1, 1, *masks.shape[2:])
            masks = masks.gather(1, index)
        return masks[:, 0].sigmoid()


def _clipped(boxes: Tensor, border: Tensor) -> Tensor:
    return boxes.clamp(min=0).minimum(border)


def _best(
    boxes: Tensor, scores: Tensor, groups: Tensor, iou_threshold: float, number: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The best boxes of each group that do not overlap, and blanks, ``number`` in all."""
    boxes, scores, groups = (
        torch.cat([t, t.new_zeros(1, *t.shape[1:])]) for t in (boxes, scores, groups)
    )
    apart = groups.to(boxes) * (boxes.max() + 1)
    kept = torch.ops.torchvision.nms(boxes + apart[:, None], scores, iou_threshold)
    blanks = torch.full((number,), -1, device=kept.device) + scores.shape[0]
    kept = torch.cat([kept, blanks])[:number]
    return boxes[kept], scores[kept], groups[kept]


def _regions(extractor: nn.Module, maps: tuple[Tensor, ...], boxes: Tensor) -> Tensor:
    """(n, C, size, size), each region from the map of its level."""
    rois = F.pad(boxes, (1, 0))  # all of image 0
    levels = extractor.map_roi_levels(rois, extractor.num_inputs)
    features = None
    for i, (layer, m) in enumerate(zip(extractor.roi_layers, maps, strict=False)):
        here = levels == i
        cut = torch.ops.torchvision.roi_align(
            m,
            torch.where(here[:, None], rois, 0.0),  # nothing of other levels, which are large
            layer.spatial_scale,
            *layer.output_size,
            layer.sampling_ratio,
            layer.aligned,
        )
        others = torch.zeros_like(cut) if features is None else features
        features = torch.where(here[:, None, None, None], cut, others)
    return features
