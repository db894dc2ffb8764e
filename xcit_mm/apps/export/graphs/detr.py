"""Deformable DETR and DINO."""

import torch
from torch import Tensor
from torch.nn import functional as F

from .boxes import border_of, clip
from .deformable_attention import WholeSteps
from .detector import DetectorGraph


class DetrGraph(DetectorGraph):
    """The objects of an image that the queries of a transformer find: as many as ``max_per_img``.

    No box is dropped because of its score or another box.
    """

    HEADS = {'bbox_head': ('DeformableDETRHead', 'DINOHead')}

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        head = self.model.bbox_head
        with WholeSteps():
            logits, boxes = head(**self._transform(image))
        scores = logits[-1, 0].sigmoid()  # (queries, classes)
        num_classes = scores.shape[1]
        number = min(head.test_cfg.get('max_per_img', len(scores)), scores.numel())
        scores, places = scores.flatten().topk(number)
        center, size = boxes[-1, 0][places // num_classes].split(2, dim=1)
        border = border_of(image)
        boxes = torch.cat([center - size / 2, center + size / 2], dim=1) * border
        return clip(boxes, border), scores, places % num_classes

    def _transform(self, image: Tensor) -> dict[str, Tensor]:
        """Return the inputs of the head, as mmdet's ``forward_transformer`` does.

        There the sizes of the maps are tensors, whose values a graph does not know. Here they are
        numbers, also for :class:`.deformable_attention.DeformableAttention`.
        """
        model = self.model
        maps = model.extract_feat(self.pad(self.normalize(image)))
        outside = self.pad(torch.zeros_like(image[:, :1]), value=1.0)  # 1 where there is no image
        masks = [F.interpolate(outside, m.shape[2:])[:, 0].bool() for m in maps]
        positions = [
            model.positional_encoding(mask).flatten(2).mT + level
            for mask, level in zip(masks, model.level_embed, strict=True)
        ]
        common = dict(
            spatial_shapes=[tuple(m.shape[2:]) for m in maps],
            level_start_index=None,  # follows from the sizes
            valid_ratios=torch.stack([model.get_valid_ratio(mask) for mask in masks], 1),
        )
        encoded = model.forward_encoder(
            feat=torch.cat([m.flatten(2).mT for m in maps], 1),
            feat_mask=torch.cat([mask.flatten(1) for mask in masks], 1),
            feat_pos=torch.cat(positions, 1),
            **common,
        )
        inputs, _ = model.pre_decoder(**encoded)
        return model.forward_decoder(memory_mask=encoded['memory_mask'], **common, **inputs)
