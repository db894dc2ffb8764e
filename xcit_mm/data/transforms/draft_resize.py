"""Resizing of images that were decoded at a fraction of their size."""

from typing import Any

import mmcv
from mmcv.transforms import Resize
from mmengine.registry import TRANSFORMS


class FromWholeSize:
    """Resizes an image to the size that the whole image would be resized to.

    ``img_shape`` is the size of the whole image, in which boxes, masks and keypoints are given;
    ``img`` may have fewer pixels, as after ``LoadImage(draft=...)``.
    """

    def _resize_img(self, results: dict[str, Any]) -> None:
        height, width = results['img_shape']
        scale = results['scale']
        size = mmcv.rescale_size((width, height), scale) if self.keep_ratio else scale
        results['img'] = mmcv.imresize(
            results['img'], size, interpolation=self.interpolation, backend=self.backend
        )
        results['img_shape'] = results['img'].shape[:2]
        results['scale_factor'] = size[0] / width, size[1] / height
        results['keep_ratio'] = self.keep_ratio


@TRANSFORMS.register_module()
class DraftResize(FromWholeSize, Resize):
    """mmcv's ``Resize`` after ``LoadImage(draft=...)``; it has its arguments."""
