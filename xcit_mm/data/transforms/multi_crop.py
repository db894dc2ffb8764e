"""Global and local crops for self-supervised pretraining, with any number of bands."""

from collections.abc import Sequence

import cv2
import numpy as np
import torch
from mmengine.registry import TRANSFORMS
from torch import Tensor, nn
from torchvision.transforms import v2

from ...base.errors import ArgumentError
from .image_transforms import to_array, to_tensor

COLORS = ('auto', 'rgb', 'bands', 'none')
RGB = 3
SIGMA = (0.1, 2.0)  # range of the blur, in pixels of the crop
MAX_MEASURED = 256  # rows and columns used to measure the spread of a band


@TRANSFORMS.register_module()
class MultiCrop:
    """Cut global and local crops out of an image and change their colors, as in DINO.

    Reads ``img`` (H, W, C), uint8 or float32 with any number of channels, and sets ``crops``: a
    tensor (2, C, g, g) of global crops and, unless ``num_local`` is 0, a tensor
    (num_local, C, l, l) of local crops, with the data type and the channel order of the image. A
    part that is smaller than a crop is enlarged.

    The crops follow `DINO <https://arxiv.org/abs/2104.14294>`_, which uses BYOL's augmentation: a
    random part resized with bicubic interpolation, random flips, changed colors, and blur (always
    for the first global crop, with a probability of 0.1 for the second, and 0.5 for local crops).
    For 8-bit images with three channels, gray crops and a solarized second global crop are added.

    For all other images, the colors are changed without assumptions about the bands: a value
    becomes ``mean + (value - mean) * gain + offset * spread``, where mean and spread are the mean
    and the standard deviation of the band in the whole image. One gain and one offset apply to all
    bands, like a change of light. In addition, a smaller gain and offset are drawn for each band.

    Args:
        global_size: The side of the two global crops in pixels.
        global_scale: The smallest and the largest share of the image area in a global crop.
        local_size: The side of the local crops in pixels.
        local_scale: The smallest and the largest share of the image area in a local crop.
        num_local: The number of local crops.
        flip: The probability of a horizontal flip of a crop.
        vertical: The probability of a vertical flip of a crop. Use 0.5 for images without an
            upright direction, such as aerial images.
        color: ``'rgb'`` (hue, saturation, gray and solarized images; only for uint8 with three
            channels in the order BGR), ``'bands'`` (gain and offset), ``'none'``, or ``'auto'``
            (``'rgb'`` where possible, otherwise ``'bands'``).
        gain: The gain of all bands is drawn from 1 - gain to 1 + gain.
        offset: The offset of all bands is drawn from -offset to offset, in units of the spread.
        per_band: The limit of the additional gain and offset of each band, in the same units.
    """

    def __init__(
        self,
        global_size: int = 224,
        global_scale: Sequence[float] = (0.25, 1.0),
        local_size: int = 96,
        local_scale: Sequence[float] = (0.05, 0.25),
        num_local: int = 8,
        flip: float = 0.5,
        vertical: float = 0.0,
        color: str = 'auto',
        gain: float = 0.4,
        offset: float = 0.4,
        per_band: float = 0.1,
    ) -> None:
        if color not in COLORS:
            raise ArgumentError(f'MultiCrop: color={color!r} is not one of {", ".join(COLORS)}')
        self.color, self.num_local = color, num_local
        self.gain, self.offset, self.per_band = gain, offset, per_band
        flips = [v2.RandomHorizontalFlip(flip), v2.RandomVerticalFlip(vertical)]
        self.cut_global = v2.Compose([_resized_crop(global_size, global_scale), *flips])
        self.cut_local = v2.Compose([_resized_crop(local_size, local_scale), *flips])
        self.change_rgb = v2.Compose(
            [
                v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
                v2.RandomGrayscale(0.2),
            ]
        )
        self.solarize = v2.RandomSolarize(128, p=0.2)

    def __call__(self, results: dict) -> dict:
        image = to_tensor(results['img'])
        change = self._change_of(image)
        first = _blurred(change(self.cut_global(image)), 1.0)
        second = _blurred(change(self.cut_global(image)), 0.1)
        if isinstance(change, _ChangeRGB):
            second = self.solarize(second)
        crops = [torch.stack([first, second])]
        if self.num_local:
            local = [change(self.cut_local(image)) for _ in range(self.num_local)]
            crops.append(torch.stack([_blurred(crop, 0.5) for crop in local]))
        results['crops'] = tuple(crops)
        return results

    def _change_of(self, image: Tensor) -> nn.Module:
        """Return the module that changes the colors of the crops of an image."""
        is_rgb = image.dtype == torch.uint8 and len(image) == RGB
        if self.color == 'none':
            return nn.Identity()
        if self.color == 'rgb' and not is_rgb:
            raise ArgumentError(
                f"MultiCrop: color='rgb' needs uint8 images with three channels, not {image.dtype} "
                f"with {len(image)}: set color='bands' or 'auto'"
            )
        if is_rgb and self.color != 'bands':
            return _ChangeRGB(self.change_rgb)
        return _ChangeBands(image, self.gain, self.offset, self.per_band)


class _ChangeRGB(nn.Module):
    """Random color changes of a crop (3, h, w) in the order BGR."""

    def __init__(self, change: nn.Module) -> None:
        super().__init__()
        self.change = change

    def forward(self, crop: Tensor) -> Tensor:
        return self.change(crop.flip(0)).flip(0)


class _ChangeBands(nn.Module):
    """Random gain and offset of the bands of a crop (C, h, w), relative to their spread."""

    def __init__(self, image: Tensor, gain: float, offset: float, per_band: float) -> None:
        super().__init__()
        steps = [-(-side // MAX_MEASURED) for side in image.shape[1:]]
        values = image[:, :: steps[0], :: steps[1]].float()
        self.spread, self.mean = torch.std_mean(values, (1, 2), correction=0, keepdim=True)
        self.gain, self.offset, self.per_band = gain, offset, per_band

    def forward(self, crop: Tensor) -> Tensor:
        if torch.rand(()) >= 0.8:  # the same probability as for RGB images
            return crop
        gain = (1 + _drawn(self.gain)) * (1 + _drawn(self.per_band, len(crop)))
        offset = _drawn(self.offset) + _drawn(self.per_band, len(crop))
        changed = (crop - self.mean) * gain + (self.mean + offset * self.spread)
        if crop.dtype == torch.uint8:
            changed = changed.round_().clamp_(0, 255)
        return changed.to(crop.dtype)


def _drawn(limit: float, number: int = 1) -> Tensor:
    return (2 * torch.rand(number, 1, 1) - 1) * limit


def _resized_crop(size: int, scale: Sequence[float]) -> v2.Transform:
    return v2.RandomResizedCrop(
        size, tuple(scale), interpolation=v2.InterpolationMode.BICUBIC, antialias=True
    )


def _blurred(crop: Tensor, probability: float) -> Tensor:
    """Blur a crop with random strength. OpenCV is several times faster than torchvision."""
    if torch.rand(()) >= probability:
        return crop
    sigma = float(torch.empty(()).uniform_(*SIGMA))
    blurred = cv2.GaussianBlur(np.ascontiguousarray(to_array(crop)), (0, 0), sigma)
    return to_tensor(blurred if blurred.ndim == 3 else blurred[..., None])
