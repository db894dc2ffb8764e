"""Trainings in bfloat16 on a CPU."""

import pytest
import torch
from helpers import ROOT
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn

from xcit_mm.config.load import load_config
from xcit_mm.engine.build_model import build_model


class Toy(nn.Module):
    """A layer and a head, as models of mmdet have them."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.bbox_head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.backbone(x)
        return x, self.bbox_head(x)


def test_layers_multiply_bfloat16_and_heads_return_float32():
    model, x = Toy(), torch.randn(3, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    wrapper = OPTIM_WRAPPERS.build(dict(type='CPUAmpOptimWrapper', optimizer=optimizer))
    with wrapper.optim_context(model):
        hidden, predicted = model(x)
    assert hidden.dtype == torch.bfloat16 and predicted.dtype == torch.float32
    before = model.backbone.weight.detach().clone()
    wrapper.update_params(predicted.square().sum())
    assert not torch.equal(model.backbone.weight, before)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.dtype for p in model(x)} == {torch.float32}  # outside of a step


@pytest.mark.parametrize('name', ['cascade_mask_rcnn', 'dino'])
def test_the_losses_of_detectors_are_float32(name):
    cfg = load_config(ROOT / f'configs/{name}_xcit_n12_16_shapes.py')
    model = build_model(cfg, 'cpu').train()
    model.init_weights()
    from mmdet.testing import demo_mm_inputs

    batch = demo_mm_inputs(1, (3, 96, 96), [3], num_classes=3, with_mask=True)
    optimizer = torch.optim.AdamW(model.parameters())
    wrapper = OPTIM_WRAPPERS.build(dict(type='CPUAmpOptimWrapper', optimizer=optimizer))
    with wrapper.optim_context(model):
        losses = model(**model.data_preprocessor(batch, training=True), mode='loss')
    losses = {key: value for key, value in losses.items() if 'loss' in key}
    values = torch.utils._pytree.tree_leaves(losses)
    assert len(values) > 8 and {value.dtype for value in values} == {torch.float32}
