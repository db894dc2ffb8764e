"""mmseg's segmentors on XCiT, with labels at the pixels that the tokens saw. Needs mmseg.

The last patches of an image reach beyond its border if a side is not a multiple of the patch size,
and so do the maps: 32 rows of stride 16 stand for 512 pixels, even if the image has 497. mmseg
resizes the scores to the image and so moves them by up to a patch, and its necks and heads resize
the map of stride 32 as well, which moves it by up to 32 pixels.
"""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.registry import MODELS
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.losses.cross_entropy_loss import cross_entropy
from mmseg.models.segmentors import CascadeEncoderDecoder, DepthEstimator, EncoderDecoder
from mmseg.models.utils import resize
from mmseg.utils import add_prefix
from torch import Tensor, nn
from torch.nn import functional as F

from ..ops.moments import to_widest
from ..pyramid import covered_size


class AlignedSegmentor:
    """A segmentor that resizes scores to the area that its maps cover, and then crops them.

    The backbone is an :class:`.XCiT` with ``pad_maps=True``.
    """

    def encode_decode(self, inputs: Tensor, batch_img_metas: Sequence[dict[str, Any]]) -> Tensor:
        """Return scores or heights (B, K, H, W) of images (B, C, H, W), or of crops of them."""
        size = inputs.shape[2:]
        covered = covered_size(size)
        metas = [{**meta, 'img_shape': covered, 'pad_shape': covered} for meta in batch_img_metas]
        scores = super().encode_decode(inputs, metas)
        return scores[..., : size[0], : size[1]]

    def loss(self, inputs: Tensor, data_samples: Sequence[Any]) -> dict[str, Tensor]:
        """Return the losses of the pixels of the images."""
        size = inputs.shape[2:]
        is_covered = covered_size(size) == size
        extended = data_samples
        if not is_covered:
            extended = [self._extended(sample, covered_size(size)) for sample in data_samples]
        if isinstance(self.decode_head, nn.ModuleList):  # of a cascade, whose heads read each other
            return super().loss(inputs, extended)
        maps, losses = self.extract_feat(inputs), {}
        for prefix, head in self.heads().items():
            if type(head).loss is BaseDecodeHead.loss:  # it resizes scores to the labels
                scores = head.forward(maps)
                if not is_covered:
                    several = isinstance(scores, (tuple, list))
                    scores = scores if several else [scores]
                    scores = [_placed(x, size, head.align_corners) for x in scores]
                    scores = scores if several else scores[0]
                of_head = _losses_of(head, scores, data_samples)
            else:
                of_head = head.loss(maps, extended, self.train_cfg)
            losses |= add_prefix(of_head, prefix)
        return losses

    def heads(self) -> dict[str, nn.Module]:
        """Return the heads by the prefixes of their losses in the log of mmseg."""
        heads = {'decode': self.decode_head}
        if self.with_auxiliary_head:
            auxiliary = self.auxiliary_head
            if isinstance(auxiliary, nn.ModuleList):
                heads |= {f'aux_{number}': head for number, head in enumerate(auxiliary)}
            else:
                heads['aux'] = auxiliary
        return heads

    def _extended(self, sample: Any, size: tuple[int, int]) -> Any:
        """Return a sample whose labels are extended to a size by pixels without a label."""
        if 'gt_sem_seg' not in sample:
            return sample
        extended, labels = sample.clone(), sample.gt_sem_seg.data  # (1, H, W)
        last = (
            self.decode_head[-1]
            if isinstance(self.decode_head, nn.ModuleList)
            else self.decode_head
        )
        added = 0, size[1] - labels.shape[2], 0, size[0] - labels.shape[1]
        labels = F.pad(labels, added, value=last.ignore_index)
        extended.set_data(dict(gt_sem_seg=type(sample.gt_sem_seg)(data=labels)))
        return extended


def _placed(scores: Tensor, size: tuple[int, int], align_corners: bool) -> Tensor:
    """Resize a map of scores (B, K, h, w) to an image; heads may have other outputs."""
    if scores.dim() != 4:
        return scores
    resized = F.interpolate(scores, covered_size(size), None, 'bilinear', align_corners)
    return resized[..., : size[0], : size[1]]


def _losses_of(head: BaseDecodeHead, scores: Any, samples: Sequence[Any]) -> dict[str, Tensor]:
    """Return what ``head.loss_by_feat`` does.

    mmseg's method reads the number of labeled pixels for the accuracy, and for an average over
    them, and so waits for the GPU. Here the number stays on the GPU.
    """
    is_own = type(head).loss_by_feat is not BaseDecodeHead.loss_by_feat
    if is_own or head.sampler is not None:
        return head.loss_by_feat(scores, samples)
    labels = head._stack_batch_gt(samples)  # (B, 1, H, W)
    scores = resize(scores, labels.shape[2:], None, 'bilinear', head.align_corners)
    labels = labels[:, 0]
    is_labeled = labels != head.ignore_index
    modules = head.loss_decode
    losses: dict[str, Tensor] = {}
    for module in modules if isinstance(modules, nn.ModuleList) else [modules]:
        averages = getattr(module, 'cls_criterion', None) is cross_entropy
        averages = averages and module.avg_non_ignore and module.class_weight is None
        averages = averages and module.reduction == 'mean'
        average = dict(avg_factor=is_labeled.sum()) if averages else {}
        loss = module(scores, labels, weight=None, ignore_index=head.ignore_index, **average)
        losses[module.loss_name] = losses.get(module.loss_name, 0) + loss
    losses['acc_seg'] = _accuracy(scores, labels, is_labeled)
    return losses


def _accuracy(scores: Tensor, labels: Tensor, is_labeled: Tensor) -> Tensor:
    """Return the percentage of labeled pixels whose class has the highest score, as mmseg does."""
    eps = torch.finfo(torch.float32).eps  # without labels, mmseg divides by it
    correct = (scores.topk(1, dim=1).indices[:, 0] == labels) & is_labeled
    share = 100 / (to_widest(is_labeled.sum()) + eps)
    return (correct.sum().float() + eps).reshape(1) * share.float()


@MODELS.register_module()
class AlignedEncoderDecoder(AlignedSegmentor, EncoderDecoder):
    """mmseg's ``EncoderDecoder`` on XCiT, which has the same arguments."""


@MODELS.register_module()
class AlignedCascadeEncoderDecoder(AlignedSegmentor, CascadeEncoderDecoder):
    """mmseg's ``CascadeEncoderDecoder`` on XCiT, which has the same arguments."""


@MODELS.register_module()
class AlignedDepthEstimator(AlignedSegmentor, DepthEstimator):
    """mmseg's ``DepthEstimator`` on XCiT, which has the same arguments."""
