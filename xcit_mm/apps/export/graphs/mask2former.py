"""Mask2Former: the objects, segments or labels that its queries find."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .detector import DetectorGraph
from .segmentor import SegmentorGraph

INSTANCES = 1000  # a panoptic label is the class plus this times the number of the thing


class Mask2FormerGraph(DetectorGraph):
    """The objects of an image (1, 3, H, W), and with ``panoptic_on`` the segment of every pixel.

    Masks (n, H, W) are bool. Panoptic labels (H, W) are the class for stuff, and the class plus
    1000 times the number of the object, from 1, for things. The number of classes means no
    segment.
    """

    HEADS = {'panoptic_head': ('Mask2FormerHead',)}

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        cfg = model.test_cfg
        self.outputs = (*self.outputs, 'masks') if cfg.get('instance_on', False) else ()
        if cfg.get('panoptic_on', True):
            self.outputs = (*self.outputs, 'panoptic')

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        x = self.pad(self.normalize(image))
        logits, masks = self.model.panoptic_head(self.model.extract_feat(x), None)
        masks = F.interpolate(masks[-1], x.shape[2:], mode='bilinear', align_corners=False)
        H, W = image.shape[2:]
        probabilities, masks = logits[-1][0].softmax(-1), masks[0, :, :H, :W]
        instances = self._instances(probabilities, masks) if 'masks' in self.outputs else ()
        panoptic = (self._panoptic(probabilities, masks),) if 'panoptic' in self.outputs else ()
        return *instances, *panoptic

    def reference(self, image: Tensor) -> tuple[Tensor, ...]:
        """Compute the objects and segments with mmdet."""
        sample = self.predict(image)
        outputs = ()
        if 'masks' in self.outputs:
            objects = sample.pred_instances
            outputs = objects.bboxes, objects.scores, objects.labels, objects.masks
        if 'panoptic' in self.outputs:
            outputs = *outputs, sample.pred_panoptic_seg.sem_seg[0]
        return outputs

    def _instances(self, probabilities: Tensor, masks: Tensor) -> tuple[Tensor, ...]:
        fusion = self.model.panoptic_fusion_head
        number = fusion.test_cfg.get('max_per_image', 100)
        scores, places = probabilities[:, :-1].flatten().topk(number)
        labels = places % fusion.num_classes
        are_things = labels < fusion.num_things_classes
        scores, labels = scores[are_things], labels[are_things]
        masks = masks[(places // fusion.num_classes)[are_things]]
        inside = (masks > 0).to(masks.dtype)
        area = inside.flatten(1).sum(1)
        scores = scores * (masks.sigmoid() * inside).flatten(1).sum(1) / (area + 1e-6)
        return _boxes(inside), scores, labels, masks > 0

    def _panoptic(self, probabilities: Tensor, masks: Tensor) -> Tensor:
        fusion = self.model.panoptic_fusion_head
        cfg = fusion.test_cfg
        scores, classes = probabilities.max(-1)
        is_shown = (classes != fusion.num_classes) & (scores > cfg.get('object_mask_thr', 0.8))
        masks = masks.sigmoid()
        winner = (torch.where(is_shown, scores, -1.0)[:, None, None] * masks).argmax(0)
        queries = torch.arange(masks.shape[0], device=masks.device)
        area = (winner == queries[:, None, None]).flatten(1).sum(1)
        whole_area = (masks >= 0.5).flatten(1).sum(1)
        # In float64, because mmdet divides whole numbers in Python.
        share = area.double() / whole_area.clamp(min=1).double()
        is_shown = is_shown & (area > 0) & (whole_area > 0) & (share >= cfg.get('iou_thr', 0.8))
        are_things = is_shown & (classes < fusion.num_things_classes)
        segments = torch.where(are_things, classes + INSTANCES * are_things.cumsum(0), classes)
        inside = is_shown[winner]
        if cfg.get('filter_low_score', False):
            inside = inside & (masks.gather(0, winner[None])[0] >= 0.5)
        return torch.where(inside, segments[winner], fusion.num_classes)


class Mask2FormerSegmentorGraph(SegmentorGraph):
    """The class of every pixel, as a segmentor of mmseg; see :class:`SegmentorGraph`."""

    NARROW = ('backbone', 'neck')

    def logits(self, maps: tuple[Tensor, ...], size: tuple[int, int]) -> Tensor:
        classes, masks = self.model.decode_head(maps, None)
        masks = F.interpolate(masks[-1], size, mode='bilinear', align_corners=False)
        classes = classes[-1].softmax(-1)[..., :-1]
        return torch.einsum('bqc,bqhw->bchw', classes, masks.sigmoid())


def _boxes(masks: Tensor) -> Tensor:
    """Return the boxes (n, 4) of masks (n, H, W) of 0 and 1; zeros for an empty mask."""
    sides = []
    for axis in (1, 2):  # the other one remains: columns, then rows
        occupied = masks.amax(axis)  # (n, length)
        place = torch.arange(occupied.shape[1], device=masks.device, dtype=masks.dtype)
        end = (occupied * (place + 1)).amax(1)
        start = torch.where(occupied > 0, place, float('inf')).amin(1)
        sides.append((torch.where(end > 0, start, 0.0), end))
    (left, right), (top, bottom) = sides
    return torch.stack([left, top, right, bottom], dim=1)
