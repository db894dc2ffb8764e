"""A convolutional head that predicts a number for each pixel, such as its height. Needs mmseg."""

import torch
from mmengine.registry import MODELS
from mmseg.models.decode_heads import FPNHead, VPDDepthHead
from torch import Tensor
from torch.nn import functional as F


@MODELS.register_module()
class HeightHead(FPNHead):
    """The head of Semantic FPN with a height instead of scores, for mmseg's ``DepthEstimator``.

    Its last convolution computes ``(height - mean) / std``, because numbers around 0 are learned in
    fewer steps. Heights of any sign are possible unless ``positive`` is set. It consists of
    convolutions and resizing, so that it can be streamed.

    Args:
        mean: The mean of the heights in the training data.
        std: Their standard deviation.
        positive: Whether heights pass through a softplus, which leaves only positive ones.
        kwargs: Arguments of ``FPNHead``, without ``num_classes``. The losses, such as
            :class:`~.height_losses.LabeledL1Loss`, take heights (B, 1, H, W) that are predicted,
            and labels of the same shape, which are NaN where there is none.
    """

    def __init__(
        self, mean: float = 0.0, std: float = 1.0, positive: bool = False, **kwargs: object
    ) -> None:
        super().__init__(num_classes=1, threshold=0.0, **kwargs)
        self.mean, self.std, self.positive = mean, std, positive

    def cls_seg(self, feat: Tensor) -> Tensor:
        """Return the heights (B, 1, h, w) of features (B, C, h, w), in float32."""
        # In 16 bits, a height of 1,000 m would be a multiple of 4 m.
        heights = super().cls_seg(feat).float() * self.std + self.mean
        return F.softplus(heights / self.std) * self.std if self.positive else heights

    def extra_repr(self) -> str:  # part of the digest that decides whether a stream continues
        scale = f'mean={self.mean}, std={self.std}, positive={self.positive}'
        return f'{super().extra_repr()}, {scale}'

    loss_by_feat = VPDDepthHead.loss_by_feat  # resizes the heights, and adds up the losses

    def _stack_batch_gt(self, batch_data_samples: list) -> Tensor:
        """Return the labels (B, 1, H, W) without the values that mmseg has added at borders."""
        labels = []
        for sample in batch_data_samples:
            heights = sample.gt_depth_map.data.clone()
            _, right, _, bottom = sample.get('padding_size', (0, 0, 0, 0))
            heights[:, heights.shape[1] - bottom :] = torch.nan
            heights[:, :, heights.shape[2] - right :] = torch.nan
            labels.append(heights)
        return torch.stack(labels)
