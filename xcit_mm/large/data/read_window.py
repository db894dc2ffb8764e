"""The transform that reads a window of a large image, as LoadImage reads an image."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mmengine.registry import TRANSFORMS

from ...base.geometry import whole
from ...data.datasets.labels import IGNORED
from ..files.image_views import MAX_8_BITS
from .scene_transforms import OpenImage


@TRANSFORMS.register_module()
class ReadWindow:
    """Read the window that :class:`.SceneWindows` has drawn, with its labels.

    Sets ``img``, BGR (h, w, 3) uint8 or bands (h, w, channels) float32, with the values that
    :class:`.OpenImage` yields in a prediction, and ``img_shape`` and ``ori_shape``, both (h, w).
    For a segmentor, it sets ``gt_seg_map``, and ``LoadLabels`` is not needed. For a
    detector, mmdet's ``LoadAnnotations`` follows.

    Pixels without data, and pixels beyond a scene that is smaller than the window, have the values
    ``fill`` and are ignored in the labels.

    Args:
        bands: See :class:`.OpenImage`.
        fill: A number for each channel, as RGB or in the order of the bands. Default: zeros;
            ``tools/train.py`` sets it to ``nan`` of the bands, or to the mean of the model's
            preprocessor, as in predictions.

    Raises:
        BadImageError: If the window has values that are not finite.
        UserError: If the window cannot be read.
    """

    def __init__(
        self, bands: Mapping[str, Any] | None = None, fill: Sequence[float] | None = None
    ) -> None:
        self.opener = OpenImage(bands)
        channels = 3 if bands is None else self.opener.loader.channels
        self.fill = np.zeros(channels, np.float32) if fill is None else np.array(fill, np.float32)

    def __call__(self, results: dict) -> dict:
        window, size = results['window'], results['window_size']
        pixels, bands = results['img'].read(window), results['bands']
        fill, is_valid = self.fill, results.pop('is_valid')
        if bands is None:
            fill = fill.round().clip(0, MAX_8_BITS).astype(np.uint8)
        elif is_valid is not None:  # whose values may be NaN
            pixels = pixels.astype(np.float32)
        if is_valid is not None:
            pixels[~is_valid] = fill
        pixels = pixels if bands is None else bands.bands(pixels)
        image, inside = np.full((*size, len(fill)), fill, pixels.dtype), tuple(whole(window.size))
        image[inside] = pixels
        if bands is None:  # BGR, as of LoadImage
            image = np.ascontiguousarray(image[..., ::-1])
        read = dict(img=image, img_shape=size, ori_shape=size, height=size[0], width=size[1])
        labels = results.pop('label_windows', None)
        if labels is not None:
            labels = labels.read(window)
            read['gt_seg_map'] = np.full(size, IGNORED, labels.dtype)
            read['gt_seg_map'][inside] = labels
            read['seg_fields'] = [*results.get('seg_fields', []), 'gt_seg_map']
        return results | read
