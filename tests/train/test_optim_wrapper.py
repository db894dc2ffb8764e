"""Trainings in bfloat16 on a CPU, and the learning rate of every parameter with layer decay."""

import re

import pytest
import torch
from helpers import ROOT
from mmengine.optim import build_optim_wrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn

from xcit_mm import XCiT
from xcit_mm.config.build_model import build_model
from xcit_mm.config.load import load_config
from xcit_mm.network.archs import ARCHS


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


def test_the_losses_of_a_detector_are_float32():
    cfg = load_config(ROOT / 'configs/cascade_mask_rcnn_xcit_n12_16_shapes.py')
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


RATE, DECAY, WEIGHT_DECAY = 1e-3, 0.8, 0.05


class Detector(nn.Module):
    def __init__(self, **kwargs) -> None:
        super().__init__()
        with torch.device('meta'):
            self.backbone = XCiT(**kwargs)
            self.neck = nn.Conv2d(8, 8, 1)
            self.head = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))


def groups(model: nn.Module, **paramwise) -> dict[str, dict]:
    """Build an optimizer, and return the group of each of its parameters by name."""
    optimizer = dict(type='AdamW', lr=RATE, weight_decay=WEIGHT_DECAY)
    cfg = dict(optimizer=optimizer, constructor='LayerDecayConstructor', paramwise_cfg=paramwise)
    built = build_optim_wrapper(model, cfg).optimizer.param_groups
    names = {parameter: name for name, parameter in model.named_parameters()}
    pairs = [(names[parameter], group) for group in built for parameter in group['params']]
    assert len(pairs) == len(dict(pairs))  # each is in one group
    return dict(pairs)


def scale(name: str, num_blocks: int) -> float:
    block = re.match(r'backbone\.blocks\.(\d+)\.', name)
    if name.startswith(('backbone.patch_embed.', 'backbone.pos_embeder.')):
        return DECAY ** (num_blocks + 1)
    return DECAY ** (num_blocks - int(block[1])) if block else 1.0


@pytest.mark.parametrize('arch', ['n12', 's24'])
def test_every_parameter_has_the_rate_of_its_layer_in_one_group(arch):
    """Multiplied by what other options of mmengine say."""
    model = Detector(arch=arch, patch_size=16, out_norm=True)
    keys = {'temperature': dict(decay_mult=0.0), 'neck': dict(lr_mult=0.1)}
    found = groups(model, layer_decay=DECAY, flat_decay_mult=0.0, custom_keys=keys)
    assert found.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        group, is_neck = found[name], 'neck' in name
        rate = RATE * scale(name, ARCHS[arch].depth) * (0.1 if is_neck else 1)
        assert group['lr'] == pytest.approx(rate, rel=1e-12), name
        is_exempt = 'temperature' in name or (parameter.ndim == 1 and not is_neck)
        assert group['weight_decay'] == (0 if is_exempt else WEIGHT_DECAY), name
    assert found['backbone.blocks.0.gamma1']['lr'] < RATE / 10


def test_frozen_parameters_and_blocks_that_are_not_computed_are_left_out():
    model = Detector(arch='n12', patch_size=16, frozen_stages=2, out_indices=(1, 3, 5, 7))
    found = groups(model, layer_decay=DECAY)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert found.keys() == trained
    blocks = {name.split('.')[2] for name in trained if '.blocks.' in name}
    assert blocks == {*'234567'}
    assert all(found[name]['lr'] == pytest.approx(RATE * scale(name, 8)) for name in trained)
