"""mmseg's segmentors on XCiT, with labels at the pixels that the tokens saw. Needs mmseg.

The last patches of an image reach beyond its border if a side is not a multiple of the patch size,
and so do the maps: 32 rows of stride 16 stand for 512 pixels, also if the image has 497. mmseg
resizes the scores to the image and so moves them by up to a patch, and its necks and heads resize
the map of stride 32 as well, which moves it by up to 32 pixels.
"""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.registry import MODELS
from mmseg.models.segmentors import DepthEstimator, EncoderDecoder
from torch import Tensor
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
        covered = covered_size(inputs.shape[2:])
        if covered != tuple(inputs.shape[2:]):
            data_samples = [self._extended(sample, covered) for sample in data_samples]
        return super().loss(inputs, data_samples)

    def _extended(self, sample: Any, size: tuple[int, int]) -> Any:
        """Return a sample whose labels are extended to a size by pixels without a label."""
        extended = sample.clone()
        for name in ('gt_sem_seg', 'gt_depth_map'):
            if name in sample:
                labels = getattr(sample, name).data  # (1, H, W)
                nothing = self.decode_head.ignore_index
                nothing = torch.nan if labels.is_floating_point() else nothing
                added = 0, size[1] - labels.shape[2], 0, size[0] - labels.shape[1]
                pixels = type(getattr(sample, name))(data=F.pad(labels, added, value=nothing))
                extended.set_data({name: pixels})
        return extended


@MODELS.register_module()
class AlignedEncoderDecoder(AlignedSegmentor, EncoderDecoder):
    """mmseg's ``EncoderDecoder`` on XCiT, which has the same arguments."""


@MODELS.register_module()
class AlignedDepthEstimator(AlignedSegmentor, DepthEstimator):
    """mmseg's ``DepthEstimator`` on XCiT, which has the same arguments."""
