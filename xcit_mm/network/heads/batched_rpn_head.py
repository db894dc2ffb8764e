"""The losses and proposals of a region proposal network for all levels and images at once."""

from collections.abc import Sequence
from typing import Any

import torch
import torchvision  # noqa: F401  registers torch.ops.torchvision
from mmdet.models.dense_heads import RPNHead
from mmdet.models.losses import CrossEntropyLoss
from mmdet.models.utils import unpack_gt_instances
from mmengine.registry import MODELS
from mmengine.structures import InstanceData
from torch import Tensor
from torch.nn import functional as F

from .anchor_grids import AnchorGrid, AnchorGrids
from .box_deltas import can_code, decode, encode
from .box_losses import box_loss, can_compute
from .matching import are_plain, can_match, match, pad_objects
from .random_samples import can_sample, sample
from .transfers import to_device

NMS_OPTIONS = {'type', 'iou_threshold'}
# A box that overlaps no other one, with the lowest score: it is the last of what NMS keeps.
BLANK, BLANK_SIDE = -1e6, 64.0  # the corner x = y, in pixels
BLANK_SCORE = -1.0


@MODELS.register_module()
class BatchedRPNHead(RPNHead):
    """mmdet's RPNHead, whose losses and proposals are computed for all levels and images at once.

    A training step starts a fifth of the operators, and waits for the GPU only in the non-maximum
    suppression of each image. Losses equal those of ``RPNHead`` for the same samples, which are
    drawn from other random numbers (:mod:`.random_samples`). In 16 bits, anchors and
    proposals are computed in float32. Predictions, and trainings with assigners, samplers, coders
    or losses that the recipes do not use, are computed by ``RPNHead`` itself.

    It has the arguments, the parameters and their names of ``RPNHead``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._grids = AnchorGrids()

    def loss_and_predict(
        self,
        x: tuple[Tensor, ...],
        batch_data_samples: Sequence[Any],
        proposal_cfg: Any = None,
    ) -> tuple[dict[str, Any], list[InstanceData]]:
        """Return the losses and the proposals of images; see mmdet's ``BaseDenseHead``."""
        objects, ignored, infos = unpack_gt_instances(batch_data_samples)
        cfg = proposal_cfg or self.test_cfg
        if not (
            self._is_batched() and _is_plain(cfg) and are_plain(self.assigner, objects, ignored)
        ):
            return super().loss_and_predict(x, batch_data_samples, proposal_cfg)
        logits, deltas = self(x)
        grid = self._grids.of(self.prior_generator, logits)
        B = len(infos)
        logits = [each.permute(0, 2, 3, 1).flatten(1) for each in logits]  # (B, anchors)
        deltas = [each.permute(0, 2, 3, 1).reshape(B, -1, 4) for each in deltas]
        deltas = torch.cat(deltas, dim=1)
        losses = self._losses(grid, torch.cat(logits, dim=1), deltas, objects, infos)
        with torch.no_grad():
            return losses, self._proposals(grid, logits, deltas, infos, cfg)

    def _is_batched(self) -> bool:
        """Return whether the head is built of parts whose losses are known here."""
        return (
            self.use_sigmoid_cls
            and self.cls_out_channels == 1
            and not self.reg_decoded_bbox
            and can_match(self.assigner)
            and can_sample(self.sampler)
            and can_code(self.bbox_coder)
            and type(self.loss_cls) is CrossEntropyLoss
            and self.loss_cls.ignore_index is None
            and can_compute(self.loss_bbox)
        )

    def _losses(
        self,
        grid: AnchorGrid,
        logits: Tensor,
        deltas: Tensor,
        objects: Sequence[InstanceData],
        infos: Sequence[dict[str, Any]],
    ) -> dict[str, list[Tensor]]:
        """Return the losses of logits (B, N) and deltas (B, N, 4) of the sampled anchors."""
        with torch.no_grad():
            boxes, _, exist = pad_objects(objects)
            assigned = match(self.assigner, grid.boxes, self._inside(grid, infos), boxes, exist)
            positive, negative = sample(self.sampler, assigned)
            number = positive.gather(assigned).sub_(1).clamp_(min=0)  # of the object
            matched = boxes.gather(1, number[..., None].expand(-1, -1, 4))
            targets = encode(self.bbox_coder, grid.boxes[positive.index], matched)
            is_positive = positive.are_valid
            targets = targets.where(is_positive[..., None], 0)
            # As mmdet counts them: at least one positive and one negative sample of each image.
            counts = (each.are_valid.sum(dim=1).clamp(min=1).sum() for each in (positive, negative))
            count = sum(counts)
            weight = self.train_cfg.get('pos_weight', -1)
            weights = positive.are_valid * (weight if weight > 0 else 1.0)
            weights = torch.cat((weights, negative.are_valid), dim=1)
            labels = torch.cat((is_positive, torch.zeros_like(negative.are_valid)), dim=1)
            index = torch.cat((positive.index, negative.index), dim=1)
        chosen = logits.gather(1, index).flatten()
        loss_cls = self.loss_cls(
            chosen, labels.flatten().long(), weights.flatten(), avg_factor=count
        )
        loss_bbox = box_loss(self.loss_bbox, positive.gather(deltas), targets, is_positive, count)
        return dict(loss_rpn_cls=[loss_cls], loss_rpn_bbox=[loss_bbox])

    def _inside(self, grid: AnchorGrid, infos: Sequence[dict[str, Any]]) -> Tensor | None:
        """Return the anchors (B, N) that are assigned; None: all."""
        inside = grid.in_images(self.prior_generator, [info['pad_shape'] for info in infos])
        border = self.train_cfg.get('allowed_border', -1)
        if border < 0:
            return inside
        limits = [(w + border, h + border) for h, w in (info['img_shape'][:2] for info in infos)]
        limits = to_device(limits, torch.float32, grid.boxes.device)[:, None]  # (B, 1, 2)
        low = (grid.boxes[:, :2] >= -border).all(dim=-1)
        within = low & (grid.boxes[:, 2:] < limits).all(dim=-1)
        return within if inside is None else within & inside

    def _proposals(
        self,
        grid: AnchorGrid,
        logits: Sequence[Tensor],
        deltas: Tensor,
        infos: Sequence[dict[str, Any]],
        cfg: Any,
    ) -> list[InstanceData]:
        """Return the best boxes of each image, those of each level without overlaps."""
        scores, index, first = [], [], 0
        for logit, count in zip(logits, grid.counts, strict=True):
            number = cfg.nms_pre if 0 < cfg.get('nms_pre', -1) < count else count
            best, place = logit.float().sigmoid().topk(number, dim=1)
            scores.append(best)
            index.append(place + first)
            first += count
        scores, index = torch.cat(scores, dim=1), torch.cat(index, dim=1)  # (B, K)
        chosen = deltas.gather(1, index[..., None].expand(-1, -1, 4)).float()
        boxes = decode(self.bbox_coder, grid.boxes[index], chosen)
        if self.bbox_coder.clip_border:
            limits = [(w, h, w, h) for h, w in (info['img_shape'][:2] for info in infos)]
            limits = to_device(limits, torch.float32, boxes.device)[:, None]
            boxes = boxes.clamp_(min=0).minimum(limits)
        smallest = cfg.get('min_bbox_size', -1)
        if smallest >= 0:
            is_large = (boxes[..., 2:] - boxes[..., :2] > smallest).all(dim=-1)
        else:
            is_large = torch.ones_like(scores, dtype=torch.bool)
        # Boxes of different levels are moved apart, as in mmcv's batched_nms.
        highest = boxes.where(is_large[..., None], 0).amax(dim=(1, 2))
        moved = boxes + (grid.levels[index] * (highest + 1)[:, None])[..., None]
        blank = boxes.new_full((len(boxes), 1, 4), BLANK)
        blank[..., 2:] += BLANK_SIDE
        moved = torch.cat((moved.where(is_large[..., None], blank), blank), dim=1)
        scores = F.pad(scores.where(is_large, BLANK_SCORE), (0, 1), value=BLANK_SCORE)
        return [self._kept(*of_image, cfg) for of_image in zip(boxes, moved, scores, strict=True)]

    def _kept(self, boxes: Tensor, moved: Tensor, scores: Tensor, cfg: Any) -> InstanceData:
        """Return the proposals of an image; the last box that NMS keeps is a blank one."""
        best = torch.ops.torchvision.nms(moved, scores, cfg.nms.iou_threshold)[:-1]
        best = best[: cfg.max_per_img]
        labels = best.new_zeros(len(best))
        return InstanceData(bboxes=boxes[best], scores=scores[best], labels=labels)


def _is_plain(cfg: Any) -> bool:
    """Return whether proposals are chosen by mmcv's plain NMS."""
    nms = cfg.get('nms') or {}
    return (
        nms.get('type', 'nms') == 'nms'
        and nms.keys() <= NMS_OPTIONS
        and nms.get('iou_threshold', 1) < 1  # or blank boxes are kept, too
        and 'max_per_img' in cfg
    )
