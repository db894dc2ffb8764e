"""The augmentation of DeiT and timm for classifiers of RGB images."""

import numpy as np
import torch
from mmengine.registry import TRANSFORMS
from PIL import Image

from ...base.environment import require
from .image_transforms import to_array

# ImageNet's, for the noise of erased parts.
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


@TRANSFORMS.register_module()
class TimmAugment:
    """Random resized crop, mirroring, RandAugment and random erasing, by timm.

    The defaults are the recipe of DeiT (arXiv 2012.12877, table 9), with which XCiT is trained.
    Reads ``img``, (H, W, 3) uint8 in the order BGR, and sets it to float32 in the same order.

    Args:
        size: The side of the crops in pixels.
        scale: The smallest and the largest share of the area in a crop.
        flip: The probability of a mirrored image.
        auto_augment: timm's name of the policy, or None.
        erase: The probability that a part is replaced by noise.

    Raises:
        DependencyError: If timm is not installed.
    """

    def __init__(
        self,
        size: int,
        scale: tuple[float, float] = (0.08, 1.0),
        flip: float = 0.5,
        auto_augment: str | None = 'rand-m9-mstd0.5-inc1',
        erase: float = 0.25,
    ) -> None:
        require('timm')
        from timm.data import create_transform
        from timm.data.random_erasing import RandomErasing

        crop, policy, _ = create_transform(
            size,
            is_training=True,
            scale=scale,
            hflip=flip,
            color_jitter=None,
            auto_augment=auto_augment,
            interpolation='bicubic',
            separate=True,
        )
        self._transforms = crop, policy
        self._erase = RandomErasing(erase, mode='pixel', device='cpu')
        self._mean, self._std = (torch.tensor(v).view(-1, 1, 1) for v in (MEAN, STD))

    def __call__(self, results: dict) -> dict:
        image = Image.fromarray(np.ascontiguousarray(results['img'][..., ::-1]))
        for transform in self._transforms:
            image = transform(image)
        x = torch.from_numpy(np.array(image)).permute(2, 0, 1).float()
        x = self._erase((x - self._mean) / self._std) * self._std + self._mean
        results['img'] = to_array(x.flip(0))
        results['img_shape'] = results['img'].shape[:2]
        return results
