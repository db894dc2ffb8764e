"""A small network whose parts are captured, and a step of it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from xcit_mm.network.graphs import GraphedModel


class Network(nn.Module):
    """A backbone, a neck and a head as in a detector, with ``layer`` in the neck."""

    def __init__(self, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.2))
        self.neck = layer or nn.Identity()
        self.unused = nn.Linear(2, 2)
        self.rpn_head = nn.Conv2d(4, 2, 1)

    def extract_feat(self, images: Tensor) -> tuple[Tensor, ...]:
        return (self.neck(self.backbone(images)),)

    def loss(self, images: Tensor) -> Tensor:
        (x,) = self.extract_feat(images)
        return self.rpn_head(x).square().mean() + x.abs().mean()


class Notes(list):
    def graphs(self, model: nn.Module, **options) -> GraphedModel:
        return GraphedModel(model, self.append, **options)


def image(size: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, size, size)


def step(model: nn.Module, graphs: GraphedModel | None, loss: Callable[[], Tensor]) -> float:
    if graphs is not None:
        graphs.attach()
    value = loss()
    if graphs is not None:
        graphs.detach()
    value.backward()
    return value.item()


def of_network(model: Network, size: int) -> Tensor:
    return model.loss(image(size))
