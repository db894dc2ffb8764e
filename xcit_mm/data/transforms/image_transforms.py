"""Transforms of images with any number of channels that have labels as a whole, or none."""

import numpy as np
import torch
from mmengine.registry import TRANSFORMS
from mmengine.structures import BaseDataElement
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from ...base.errors import ArgumentError


def to_tensor(image: np.ndarray) -> Tensor:
    """Return an image (H, W, C) as a tensor (C, H, W) of the same type in channels-last memory."""
    return torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)


def to_array(image: Tensor) -> np.ndarray:
    """Return a tensor (C, H, W) as an image (H, W, C)."""
    return image.permute(1, 2, 0).numpy()


@TRANSFORMS.register_module()
class CenterSquare:
    """Resize the shorter side and cut out the central square, as for the evaluation of classifiers.

    Reads and sets ``img`` (H, W, C).

    Args:
        size: The side of the square in pixels.
        ratio: The side of the square divided by the shorter side of the resized image (1.0 in the
            paper, section 4.1).
    """

    def __init__(self, size: int, ratio: float = 1.0) -> None:
        if not 0 < ratio <= 1:
            raise ArgumentError(f'CenterSquare: ratio={ratio!r} is not in (0, 1]')
        self.size, self.ratio = size, ratio

    def __call__(self, results: dict) -> dict:
        image = to_tensor(results['img'])
        shorter = round(self.size / self.ratio)
        image = F.resize(image, [shorter], v2.InterpolationMode.BICUBIC, antialias=True)
        results['img'] = to_array(F.center_crop(image, [self.size, self.size]))
        results['img_shape'] = results['img'].shape[:2]
        return results


@TRANSFORMS.register_module()
class CropAndFlip:
    """Cut out a random part of an image, resize it, and mirror it at random.

    Reads and sets ``img`` (H, W, C) of any number of channels and any type.

    Args:
        size: The side of the resized part in pixels.
        scale: The smallest and the largest share of the area.
        flip: The probability of a mirrored image.
    """

    def __init__(
        self, size: int, scale: tuple[float, float] = (0.08, 1.0), flip: float = 0.5
    ) -> None:
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(
                    size, scale, interpolation=v2.InterpolationMode.BICUBIC, antialias=True
                ),
                v2.RandomHorizontalFlip(flip),
            ]
        )

    def __call__(self, results: dict) -> dict:
        results['img'] = to_array(self.transform(to_tensor(results['img'])))
        results['img_shape'] = results['img'].shape[:2]
        return results


@TRANSFORMS.register_module()
class PackImage:
    """Pack ``img`` (H, W, C), or the tensors in ``crops``, with the label of the whole image.

    The data sample holds ``img_path``, ``ori_shape``, and ``gt_label`` if there is one.
    """

    def __call__(self, results: dict) -> dict:
        inputs = results.get('crops')
        info = {name: results[name] for name in ('img_path', 'ori_shape')}
        sample = BaseDataElement(metainfo=info)
        if 'gt_label' in results:
            sample.set_field(results['gt_label'], 'gt_label', dtype=int)
        return dict(
            inputs=to_tensor(results['img']) if inputs is None else inputs, data_samples=sample
        )
