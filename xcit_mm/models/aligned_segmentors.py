"""mmseg's segmentors on XCiT, with labels at the pixels that the tokens saw. Needs mmseg.

The last patches of an image reach beyond its border if a side is not a multiple of the patch size,
and so do the maps: 32 rows of stride 16 stand for 512 pixels, even if the image has 497. mmseg
resizes the scores to the image and so moves them by up to a patch, and its necks and heads resize
the map of stride 32 as well, which moves it by up to 32 pixels.
"""

from collections.abc import Sequence
from typing import Any

from mmengine.registry import MODELS
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.segmentors import CascadeEncoderDecoder, DepthEstimator, EncoderDecoder
from mmseg.utils import add_prefix
from torch import Tensor, nn
from torch.nn import functional as F

from .pyramid import covered_size


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
        if covered_size(size) == size:
            return super().loss(inputs, data_samples)
        extended = [self._extended(sample, covered_size(size)) for sample in data_samples]
        if isinstance(self.decode_head, nn.ModuleList):  # of a cascade, whose heads read each other
            return super().loss(inputs, extended)
        maps, losses = self.extract_feat(inputs), {}
        for prefix, head in self.heads().items():
            if type(head).loss is BaseDecodeHead.loss:  # it resizes scores to the labels
                scores = head.forward(maps)
                several = isinstance(scores, (tuple, list))
                scores = scores if several else [scores]
                scores = [_placed(x, size, head.align_corners) for x in scores]
                of_head = head.loss_by_feat(scores if several else scores[0], data_samples)
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


@MODELS.register_module()
class AlignedEncoderDecoder(AlignedSegmentor, EncoderDecoder):
    """mmseg's ``EncoderDecoder`` on XCiT, which has the same arguments."""


@MODELS.register_module()
class AlignedCascadeEncoderDecoder(AlignedSegmentor, CascadeEncoderDecoder):
    """mmseg's ``CascadeEncoderDecoder`` on XCiT, which has the same arguments."""


@MODELS.register_module()
class AlignedDepthEstimator(AlignedSegmentor, DepthEstimator):
    """mmseg's ``DepthEstimator`` on XCiT, which has the same arguments."""
