"""Inference on large images, whose maps and scores take gigabytes."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..large_images.segment import has_unmodified_head

MAX_SCORES = 2**25  # numbers that are resized at a time: 128 MiB


class SingleUseMaps(list):
    """Feature maps, each of which is freed once it has been read."""

    def __getitem__(self, index: int) -> Tensor | None:
        feature_map = super().__getitem__(index)
        self[index] = None
        return feature_map


def free_backbone_maps(model: nn.Module) -> AbstractContextManager:
    """Free each map once the FPN has read it, within a ``with`` block: a quarter of the memory.

    A neck that is not an FPN may read a map twice.
    """
    neck = getattr(model, 'neck', None)
    if type(neck).__name__ not in ('FPN', 'FusedFPN') or neck.add_extra_convs == 'on_input':
        return nullcontext()
    return model.backbone.register_forward_hook(lambda module, inputs, maps: SingleUseMaps(maps))


def segment(model: nn.Module, data: dict[str, Any]) -> list[Tensor]:
    """Return the labels (H, W) of each image at its original size.

    mmseg resizes the scores of all classes to the size of the image. That needs 14 GB for 150
    classes and 24 megapixels. Here, a few classes at a time are resized and compared with the best
    score so far. Sliding windows and segmentors with their own inference are left to mmseg.
    """
    is_whole = (
        has_unmodified_head(model)
        and model.out_channels > 1
        and model.test_cfg.get('mode', 'whole') == 'whole'
    )
    if not is_whole:
        return [sample.pred_sem_seg.data[0] for sample in model.test_step(data)]
    data = model.data_preprocessor(data, False)
    samples = data['data_samples']
    scores = model(data.pop('inputs'), samples, mode='tensor')  # (B, classes, H/4, W/4)
    return [_labels(model, scores[i : i + 1], sample.metainfo) for i, sample in enumerate(samples)]


def _labels(model: nn.Module, scores: Tensor, meta: dict[str, Any]) -> Tensor:
    size = meta['ori_shape']
    num_classes = max(1, MAX_SCORES // max(math.prod(size), math.prod(meta['img_shape'])))
    best_scores = scores.new_full(size, -torch.inf)
    labels = torch.zeros(size, dtype=torch.long, device=scores.device)
    for first in range(0, scores.shape[1], num_classes):
        # First to the size that the model has seen, then to the original size, as in mmseg.
        part = scores[:, first : first + num_classes].contiguous()
        part = model.decode_head.predict_by_feat(part, [meta])
        part = F.interpolate(part, size, mode='bilinear', align_corners=model.align_corners)
        part_scores, part_labels = part[0].max(0)
        labels = torch.where(part_scores > best_scores, part_labels + first, labels)
        best_scores = torch.maximum(best_scores, part_scores)
    return labels
