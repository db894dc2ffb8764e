"""What an ONNX file computes: from pixels, which it normalises, to maps or labels."""

import copy

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..models import XCiT


class Graph(nn.Module):
    """A model of mmdet or mmseg, or a part of it, that takes images as they are loaded."""

    outputs: tuple[str, ...]  # names
    batched = True  # takes several images at once

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        backbone = model.backbone
        self.channels = backbone.in_channels if isinstance(backbone, XCiT) else 3

    def normalize(self, image: Tensor) -> Tensor:
        """Normalise images (B, channels, H, W) as the config says."""
        preprocessor = self.model.data_preprocessor
        if not hasattr(preprocessor, 'mean'):  # the config does not normalise
            return image
        return (image - preprocessor.mean) / preprocessor.std

    def reference(self, image: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs as mmdet or mmseg does."""
        return self(image)

    def for_any_size(self) -> 'Graph':
        """Return a copy without the modules that an ONNX file has only for fixed sizes."""
        graph = copy.deepcopy(self)
        for module in list(graph.modules()):
            for name, child in module.named_children():
                if type(child) is nn.AdaptiveAvgPool2d:
                    setattr(module, name, MatrixPool(child))
                elif type(child).__name__ == 'Upsample' and child.scale_factor is not None:
                    # mmseg's computes a size in Python, which would be a constant of the graph.
                    options = dict(mode=child.mode, align_corners=child.align_corners)
                    setattr(module, name, nn.Upsample(scale_factor=child.scale_factor, **options))
        return graph


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


class SegmentorGraph(Graph):
    """The class of every pixel: (B, 3, H, W) to logits (B, K, H, W) and labels (B, H, W)."""

    outputs = ('logits', 'labels')

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        head = getattr(model, 'decode_head', None)
        if hasattr(head, 'transformer_decoder'):
            raise UserError(
                f'{type(head).__name__} cannot be exported as a whole: --part backbone exports the '
                'maps of its backbone'
            )

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        size = dict(img_shape=(image.shape[2], image.shape[3]))
        logits = self.model.encode_decode(self.normalize(image), [size])
        return logits, logits.argmax(dim=1)


class MatrixPool(nn.Module):
    """``nn.AdaptiveAvgPool2d``, which ONNX has for fixed sizes only, as a product of matrices."""

    def __init__(self, pool: nn.AdaptiveAvgPool2d) -> None:
        super().__init__()
        size = pool.output_size
        self.height, self.width = (size, size) if isinstance(size, int) else size

    def forward(self, x: Tensor) -> Tensor:
        return _averages(self.height, x.shape[2], x) @ x @ _averages(self.width, x.shape[3], x).T


def _averages(number: int, length: int, like: Tensor) -> Tensor:
    """(number, length): row i averages from i * length / number, rounded down, to the next bin."""
    i = torch.arange(number, device=like.device)[:, None]
    start, end = i * length // number, ((i + 1) * length + number - 1) // number
    place = torch.arange(length, device=like.device)
    inside = ((place >= start) & (place < end)).to(like.dtype)
    return inside / (end - start).to(like.dtype)
