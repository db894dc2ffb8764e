"""Heads of mmdet and mmseg with folded norms, and with regions in float32."""

import sys
from collections import Counter
from collections.abc import Sequence

from torch import Tensor, nn

from ...network.fast.unmodified import is_unmodified


def fold_batch_norms(model: nn.Module) -> None:
    """Fold BatchNorm into the convolution before it, in every ConvModule of the neck and heads."""
    from mmcv.cnn import ConvModule
    from mmcv.cnn.utils.fuse_conv_bn import fuse_conv_bn

    parts = [part for name, part in model.named_children() if name != 'backbone']
    modules = [m for part in parts for m in part.modules() if isinstance(m, ConvModule)]
    uses = Counter(id(module.conv) for module in modules)  # levels with norms of their own share it
    for module in modules:
        if (
            not is_unmodified(module, (ConvModule,))
            or not module.with_norm
            or uses[id(module.conv)] > 1
        ):
            continue
        if [layer for layer in module.order if layer != 'act'] != ['conv', 'norm']:
            continue
        values = [getattr(module.norm, name, None) for name in ('weight', 'running_mean')]
        has_values = all(value is not None for value in values)
        if has_values and is_unmodified(module.norm) and is_unmodified(module.conv):
            fuse_conv_bn(module)


def fuse_roi_extractors(model: nn.Module) -> None:
    """Keep the regions of RoI extractors in float32, whatever the dtype of the maps.

    mmdet rounds them to the dtype of the maps: in bfloat16, coordinates from 1024 on become
    multiples of 8 pixels.
    """
    for module in model.modules():
        if type(module).__name__ == 'SingleRoIExtractor' and is_unmodified(module, (type(module),)):
            module.__class__ = type('FusedRoIExtractor', (_FusedRoIExtractor, type(module)), {})


class _FusedRoIExtractor:
    def forward(
        self, feats: Sequence[Tensor], rois: Tensor, roi_scale_factor: float | None = None
    ) -> Tensor:
        levels = self.map_roi_levels(rois, len(feats))
        if roi_scale_factor is not None:
            rois = self.roi_rescale(rois, roi_scale_factor)
        size = self.roi_layers[0].output_size
        features = feats[0].new_zeros(len(rois), self.out_channels, *size)
        for level, (layer, x) in enumerate(zip(self.roi_layers, feats, strict=False)):
            index = (levels == level).nonzero()[:, 0]
            if len(index):
                # Compiled mmcv needs maps and regions of one dtype. What replaces it has no file.
                is_compiled = hasattr(sys.modules['mmcv._ext'], '__file__')
                x = x.to(rois.dtype) if is_compiled else x
                features[index] = layer(x, rois[index]).to(features.dtype)
        return features
