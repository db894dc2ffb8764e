"""The base of all graphs, from raw pixels to named outputs, and the graph of a backbone alone."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ....network import XCiT


class Graph(nn.Module):
    """A model of mmdet or mmseg, or a part of it, that takes images as they are loaded."""

    outputs: tuple[str, ...]  # names
    batched = True  # takes several images at once
    side: int | None = None  # of images, which are square; None: any size
    # Parts of the model that may compute in float16. Heads with transformers compute coordinates,
    # which it would round to whole pixels.
    NARROW: tuple[str, ...] = ('backbone', 'neck')

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        backbone = model.backbone
        self.channels = backbone.in_channels if isinstance(backbone, XCiT) else 3

    def normalize(self, image: Tensor) -> Tensor:
        """Normalize images (B, channels, H, W) as the config says."""
        preprocessor = self.model.data_preprocessor
        if not hasattr(preprocessor, 'mean'):  # the config does not normalize
            return image
        return (image - preprocessor.mean) / preprocessor.std

    def reference(self, image: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs as mmdet or mmseg does."""
        return self(image)

    def prepare(self, pixels: Tensor) -> Tensor:
        """Return the input for the pixels of images, (B, channels, H, W) from 0 to 255."""
        return pixels

    def compared(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return outputs by name in the form in which they are compared."""
        return dict(outputs)

    def with_more_objects(self, image: Tensor) -> 'Graph | None':
        """Return a graph that finds more objects in an image than this one, if there is one."""
        return None


class BackboneGraph(Graph):
    """The maps of the backbone, (B, 3, H, W) to each (B, C, H_i, W_i)."""

    outputs = ('stride4', 'stride8', 'stride16', 'stride32')

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        if isinstance(model.backbone, XCiT):
            self.outputs = self.outputs[model.backbone.start_level :]
        else:
            with torch.no_grad():
                maps = model.backbone(torch.zeros(1, 3, 64, 64))
            self.outputs = tuple(f'map{i}' for i in range(len(maps)))

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        return self.model.backbone(self.normalize(image))
