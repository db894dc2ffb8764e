"""What an ONNX file computes: from pixels, normalised inside, to maps or labels."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..models import XCiT
from .replacements import MatrixPool, plain_upsample

SMALL = 64, 64  # pixels, to see how many maps there are


class Graph(nn.Module):
    """A model, or a part of it, that takes images as they are.

    Args:
        model: mmdet's or mmseg's, with the mean and the deviation of its pixels.

    Attributes:
        outputs: Their names.
        batched: Whether it takes several images at once.
        replacements: As of :func:`xcit_mm.export.replacements.replace_modules`.
    """

    outputs: tuple[str, ...]
    batched = True
    replacements: dict[type[nn.Module], Callable] = {nn.AdaptiveAvgPool2d: MatrixPool.like}

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def normalised(self, image: Tensor) -> Tensor:
        """(B, 3, H, W), RGB in 0..255, to what the backbone was trained on."""
        preprocessor = self.model.data_preprocessor
        if not hasattr(preprocessor, 'mean'):  # the config does not normalise
            return image
        return (image - preprocessor.mean) / preprocessor.std

    def reference(self, image: Tensor) -> tuple[Tensor, ...]:
        """The outputs as they are without a graph, where that is another computation."""
        return self(image)


class BackboneGraph(Graph):
    """The maps of the backbone.

    Shape:
        (B, 3, H, W) to four maps (B, C, H_i, W_i), as of :class:`xcit_mm.XCiT`; of another backbone
        as many as it has.
    """

    outputs = ('stride4', 'stride8', 'stride16', 'stride32')

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        if not isinstance(model.backbone, XCiT):
            with torch.no_grad():
                maps = model.backbone(torch.zeros(1, 3, *SMALL))
            self.outputs = tuple(f'map{i}' for i in range(len(maps)))

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        return self.model.backbone(self.normalised(image))


class SegmentorGraph(Graph):
    """The class of every pixel.

    Shape:
        (B, 3, H, W) to logits (B, K, H, W) of K classes, and labels (B, H, W), the largest of them.
    """

    outputs = ('logits', 'labels')

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        from mmseg.models.utils import Upsample

        self.replacements = {**self.replacements, Upsample: plain_upsample}

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        size = dict(img_shape=(image.shape[2], image.shape[3]))
        logits = self.model.encode_decode(self.normalised(image), [size])
        return logits, logits.argmax(dim=1)
