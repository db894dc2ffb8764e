"""Layers that are changed, wrapped, replaced or observed are called instead of read."""

import copy

import pytest
import torch
from helpers import randomize, relative_error
from helpers.small_xcit import assert_same_maps, small_xcit
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from xcit_mm import XCiT
from xcit_mm.network.fast.unmodified import is_unmodified
from xcit_mm.network.layers import LPI, XCA, Mlp

LEAVES = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.LayerNorm, nn.GELU)


class Lora(nn.Module):
    """A frozen layer with a trainable update of low rank."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(0.1 * torch.randn(rank, base.in_features))
        self.up = nn.Parameter(0.1 * torch.randn(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T

    def merged(self) -> nn.Linear:
        linear = copy.deepcopy(self.base)
        linear.weight.data += self.up.detach() @ self.down.detach()
        return linear


class Quantized(Tensor):
    def __tensor_flatten__(self):
        raise NotImplementedError


@pytest.fixture
def model() -> XCiT:
    model = small_xcit(patch_size=8, drop_path_rate=0.0)
    randomize(model)
    return model.eval()


@pytest.fixture
def image() -> Tensor:
    return torch.randn(1, 3, 280, 280)  # 1225 tokens: the Gram form, more than a chunk of the MLP


def replace(model: nn.Module, kind: type[nn.Module], function) -> None:
    for name, module in list(model.named_modules()):
        if type(module) is kind:
            model.set_submodule(name, function(module))


@torch.no_grad()
def infer(model: nn.Module, image: Tensor) -> tuple[Tensor, ...]:
    return model(image)


def test_lora_trains_its_own_parameters_and_can_be_merged(model, image):
    original = infer(model, image)
    replace(model.requires_grad_(False), nn.Linear, Lora)
    maps = model(image)
    assert_same_maps(infer(model, image), maps)
    assert all(relative_error(a, b) > 1e-2 for a, b in zip(maps, original, strict=True))
    sum(m.square().sum() for m in maps).backward()
    loras = [m for m in model.modules() if isinstance(m, Lora)]
    assert len(loras) == 4 * len(model.blocks)
    for lora in loras:
        assert lora.base.weight.grad is None
        assert lora.down.grad.abs().sum() > 0 < lora.up.grad.abs().sum()
    replace(model, Lora, Lora.merged)
    assert_same_maps(infer(model, image), maps)


@pytest.mark.parametrize('training', [False, True])
def test_hooks_see_every_layer_once_and_what_they_keep_stays(model, image, training):
    expected = infer(model, image)
    kept = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        kept.append((module, inputs[0], inputs[0].clone(), output, output.clone()))

    layers = [m for m in model.modules() if isinstance(m, LEAVES)]
    branches = [m for b in model.blocks for m in (b.attn, b.local_mp, b.mlp)]
    for module in (*layers, *branches):
        module.register_forward_hook(keep)
    with torch.set_grad_enabled(training):
        assert_same_maps(model(image), expected)
    assert len(kept) == len({module for module, *_ in kept}) == len(layers) + len(branches)
    for _, inputs, inputs_before, output, output_before in kept:
        assert torch.equal(inputs, inputs_before) and torch.equal(output, output_before)


@pytest.mark.parametrize('name', [
    'patch_embed.proj.0.0', 'patch_embed.proj.0.1', 'pos_embeder.token_projection', 'fpn1.0',
    'blocks.1.attn.qkv', 'blocks.1.attn.proj', 'blocks.1.mlp.fc1', 'blocks.1.mlp.fc2',
    'blocks.1.local_mp.conv1', 'blocks.1.local_mp.bn', 'blocks.1.local_mp.conv2',
])  # fmt: skip
def test_a_hook_that_doubles_an_output_equals_doubled_weights(model, image, name):
    doubled = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in doubled.get_submodule(name).parameters():
            parameter *= 2
    model.get_submodule(name).register_forward_hook(lambda module, inputs, output: 2 * output)
    for training in (False, True):
        with torch.set_grad_enabled(training):
            assert_same_maps(model(image), doubled(image))


def test_a_branch_may_be_replaced(model, image):
    expected = infer(model, image)
    model.blocks[1].mlp = nn.Sequential(model.blocks[1].mlp, nn.Identity())
    for maps in (infer(model, image), model(image)):
        assert_same_maps(maps, expected)


@pytest.mark.parametrize(
    'change',
    [
        lambda block: setattr(block, 'attn', nn.Identity()),
        lambda block: setattr(block, 'mlp', nn.Linear(32, 32)),
        lambda block: setattr(block.attn, 'proj', nn.Linear(32, 32, bias=False)),
        lambda block: setattr(block.mlp, 'fc2', nn.Linear(128, 32, bias=False)),
        lambda block: setattr(block.local_mp, 'act', nn.Identity()),
        lambda block: setattr(block.local_mp, 'act', nn.GELU('tanh')),
        lambda block: setattr(block.local_mp, 'bn', nn.Identity()),
        lambda block: setattr(block.local_mp, 'bn', nn.BatchNorm2d(32, affine=False)),
        lambda block: block.local_mp.bn.train(),
    ],
)
@pytest.mark.parametrize('with_gradients', [False, True])
def test_other_layers_in_a_block_are_called(monkeypatch, model, change, with_gradients):
    block, x = model.blocks[0], torch.randn(1, 700, 32)
    change(block)
    plain = copy.deepcopy(block)
    with torch.set_grad_enabled(with_gradients):
        y = block(x, 28, 25)
        monkeypatch.setattr('xcit_mm.network.layers.fast_form', lambda *args: None)
        assert relative_error(y, plain(x, 28, 25)) <= 1e-5
    for buffer, expected in zip(block.buffers(), plain.buffers(), strict=True):
        assert torch.allclose(buffer, expected)


@pytest.mark.parametrize(
    'change',
    [
        lambda layer: layer.register_forward_hook(print),
        lambda layer: layer.register_forward_pre_hook(print),
        lambda layer: layer.register_full_backward_hook(print),
        lambda layer: layer.register_full_backward_pre_hook(print),
        lambda layer: parametrizations.weight_norm(layer),
        lambda layer: prune.l1_unstructured(layer, 'weight', 0.5),
        lambda layer: setattr(layer, 'forward', torch.relu),
        lambda layer: setattr(layer, 'weight', nn.Parameter(layer.weight.as_subclass(Quantized))),
        lambda layer: setattr(layer, '__class__', type('Subclass', (nn.Linear,), {})),
    ],
)
def test_a_changed_layer_is_called(change):
    layer = nn.Linear(2, 2)
    assert is_unmodified(layer)
    change(layer)
    assert not is_unmodified(layer)


@pytest.mark.parametrize('kind', [XCA, LPI, Mlp])
@pytest.mark.parametrize('with_gradients', [False, True])
def test_a_replaced_formula_of_a_class_is_called(monkeypatch, model, kind, with_gradients):
    forward, x = kind.forward, torch.randn(1, 700, 32)
    monkeypatch.setattr(kind, 'forward', lambda *args: 0 * forward(*args))
    with torch.set_grad_enabled(with_gradients):
        y = model.blocks[0](x, 28, 25)
        monkeypatch.setattr('xcit_mm.network.layers.fast_form', lambda *args: None)
        assert relative_error(y, model.blocks[0](x, 28, 25)) <= 1e-6
        monkeypatch.setattr(kind, 'forward', forward)
        assert relative_error(y, model.blocks[0](x, 28, 25)) > 1e-3
