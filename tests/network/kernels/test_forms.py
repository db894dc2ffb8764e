"""Whole blocks and backbones in kernels, by Triton's interpreter, against the layers."""

import copy

import pytest
import torch
from helpers import randomize, relative_error
from helpers.small_xcit import small_xcit
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from xcit_mm import XCiT, accelerate
from xcit_mm.network.fast import cpu, form, gpu
from xcit_mm.network.fast.kernels import attention
from xcit_mm.network.fast.recompute import recompute
from xcit_mm.network.layers import ConvPatchEmbed, XCABlock
from xcit_mm.network.pyramid import pyramid_levels
from xcit_mm.network.rows import ALONE, Rows
from xcit_mm.network.tokens import map_to_tokens, tokens_to_map

TOLERANCE = 3e-6
LAYERS = 'xcit_mm.network.layers.fast_form'


@pytest.fixture
def in_kernels(monkeypatch):
    """Compute blocks and stacks on the CPU as on a GPU."""
    monkeypatch.setattr(form, 'cpu', gpu)


def gradients(
    module: nn.Module, x: Tensor, *args: object, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Return the output, the gradients of input and parameters, and the buffers of a module."""
    module, x = copy.deepcopy(module), x.clone().requires_grad_()
    with torch.autocast('cpu', dtype, enabled=dtype is not None):
        y = module(x, *args)
    outputs = y if isinstance(y, tuple) else (y,)
    generator = torch.Generator().manual_seed(0)
    cotangents = [torch.randn(y.shape, generator=generator).to(y) for y in outputs]
    torch.autograd.backward(outputs, cotangents)
    values = {f'output {i}': y.detach() for i, y in enumerate(outputs)} | {'input': x.grad}
    values |= {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return {n: v.double() for n, v in (*values.items(), *module.named_buffers())}


def assert_same(values: dict[str, Tensor], exact: dict[str, Tensor], tolerance: float) -> None:
    assert values.keys() == exact.keys()
    for name, value in exact.items():  # the gradient of a bias before BatchNorm is 0
        error = (values[name] - value).norm() / value.norm().clamp_min(1)
        assert error <= tolerance, name


def test_a_block(monkeypatch):
    block, x = XCABlock(48, 3, eta=1.0, drop_path=0.0), torch.randn(2, 35, 48)
    randomize(block)
    exact = gradients(block.double(), x.double(), 5, 7)
    monkeypatch.setattr(form, 'cpu', gpu)
    block = block.float()
    for parameter in block.parameters():  # another order in memory, as of loaded weights
        parameter.data = parameter.data[..., None].repeat_interleave(2, -1)[..., 0]
    assert_same(gradients(block, x, 5, 7), exact, TOLERANCE)
    with pytest.raises(RuntimeError, match='5, 8'):
        block(x, 5, 8)


def second_derivatives(module: nn.Module, x: Tensor, *args: object) -> list[Tensor | None]:
    """Return the gradients of a penalty for the gradients of a module, and of its outputs."""
    module, x = copy.deepcopy(module), x.clone().requires_grad_()
    inputs = [x, *(p for p in module.parameters() if p.requires_grad)]
    y = module(x, *args)
    value = sum(map_.sin().sum() for map_ in (y if isinstance(y, tuple) else (y,)))
    first = torch.autograd.grad(value, inputs, create_graph=True, allow_unused=True)
    (value + sum(g.square().mean() for g in first if g is not None)).backward()
    return [t.grad for t in inputs]


@pytest.mark.parametrize('training', [True, False])
def test_second_derivatives_of_a_block(monkeypatch, training):
    block = XCABlock(32, 2, eta=1.0, drop_path=0.0).train(training)
    randomize(block)
    block.mlp.fc1.weight.requires_grad_(False)
    x, draws = torch.randn(2, 12, 32), [torch.tensor([0, 1.5]).view(2, 1, 1)] * 3
    exact = second_derivatives(block.double(), x.double(), 3, 4, ALONE, [d.double() for d in draws])
    monkeypatch.setattr(form, 'cpu', gpu)
    values = second_derivatives(block.float(), x, 3, 4, ALONE, draws)
    for value, expected in zip(values, exact, strict=True):
        assert (value.double() - expected).norm() <= 1e-5 * expected.norm().clamp_min(1)


class Recomputed(nn.Module):
    """A stem, a block that is computed again in the backward pass, and a level of the pyramid."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvPatchEmbed(32, 8)
        self.block = XCABlock(32, 2, eta=1.0, drop_path=0.0)
        self.level = pyramid_levels(32, 16)[0]

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        tokens = recompute(self.block, map_to_tokens(x), *x.shape[2:], within=self.block)
        return self.level(tokens_to_map(tokens, *x.shape[2:]))


def test_second_derivatives_of_a_checkpoint_and_of_stacks(monkeypatch):
    model, image = Recomputed(), torch.randn(1, 3, 16, 24)  # BatchNorm of one image
    randomize(model)
    exact = second_derivatives(model.double(), image.double())
    monkeypatch.setattr(form, 'cpu', gpu)
    values = second_derivatives(model.float(), image)
    for value, expected in zip(values, exact, strict=True):
        assert (value.double() - expected).norm() <= 1e-4 * expected.norm().clamp_min(1)


def test_float16_is_no_less_exact_than_the_layers_under_autocast(monkeypatch):
    block = XCABlock(48, 3, eta=1.0, drop_path=0.3)
    randomize(block)
    with torch.no_grad():
        for gamma in (block.gamma1, block.gamma2, block.gamma3):
            gamma *= 1e-5
    x, draws = torch.randn(2, 63, 48), [torch.tensor([0, 1.5]).view(2, 1, 1)] * 3
    exact = gradients(block.double(), x.double(), 7, 9, ALONE, [d.double() for d in draws])
    errors = []
    for fast in (None, gpu):
        monkeypatch.setattr(LAYERS, lambda *args, fast=fast: fast)
        values = gradients(block.float(), x, 7, 9, ALONE, draws, dtype=torch.float16)
        errors.append({name: relative_error(values[name], exact[name]) for name in exact})
    for name, error in errors[1].items():
        assert error <= 1.1 * errors[0][name] + 1e-6, name


@pytest.mark.slow
def test_a_backbone_that_is_checkpointed(messages):
    """Its first step verifies the kernels within a checkpoint."""
    model = small_xcit(drop_path_rate=0.0, with_cp=True, pad_maps=True)
    image = torch.randn(1, 3, 29, 45)
    randomize(model)
    exact = gradients(model.double(), image.double())
    assert_same(gradients(model.float(), image), exact, 1e-5)
    assert not messages and gpu._verified


def test_a_backbone_in_inference_and_in_float16(in_kernels):
    model, image = small_xcit(drop_path_rate=0.5).eval(), torch.randn(1, 3, 29, 45)
    randomize(model)
    before = image.clone()
    with torch.no_grad():
        maps = model(image)
    assert torch.equal(image, before)
    for a, b in zip(maps, model(image), strict=True):
        assert relative_error(a, b) <= TOLERANCE
    with torch.no_grad():
        narrow = model.half()(image.half())
    for a, b in zip(narrow, maps, strict=True):
        assert a.dtype == torch.float16 and relative_error(a.float(), b) <= 5e-3


def test_an_empty_batch(in_kernels):
    model, image = small_xcit(norm_eval=True), torch.empty(0, 3, 32, 32)
    maps = model(image)
    sum(m.sum() for m in maps).backward()
    assert maps[0].shape == (0, 32, 8, 8)
    assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)


def test_an_accelerated_model_of_timm(monkeypatch):
    xcit = pytest.importorskip('timm.models.xcit')
    model = xcit.Xcit(patch_size=16, embed_dim=32, depth=2, num_heads=2, num_classes=3).eval()
    randomize(model)
    image = torch.randn(1, 3, 48, 64)
    with torch.no_grad():
        expected = model(image)
        monkeypatch.setattr(form, 'cpu', gpu)
        assert relative_error(accelerate(model)(image), expected) <= 1e-5


@pytest.fixture
def messages(monkeypatch):
    """Ask for kernels as on a GPU, and collect what the log says."""
    messages = []

    def fast_form(module: nn.Module, x: Tensor, rows: Rows) -> object:
        fast = form.fast_form(module, x, rows)
        return gpu if fast and gpu.can_compute(module, x) else fast

    for user in ('layers', 'conv_stack'):
        monkeypatch.setattr(f'xcit_mm.network.{user}.fast_form', fast_form)
    monkeypatch.setattr(gpu, '_disabled', set())
    monkeypatch.setattr(gpu, '_has_kernels', lambda device: True)
    monkeypatch.setattr(gpu, '_verified', {})
    monkeypatch.setattr(gpu, 'print_log', lambda message, *_: messages.append(message))
    monkeypatch.setattr(torch.cuda, 'is_current_stream_capturing', lambda: False)
    gpu._explain.cache_clear()
    return messages


class Broken:
    __name__ = 'broken_kernel'

    def __getitem__(self, grid: tuple[int, ...]) -> None:
        raise ValueError('out of registers')


def test_a_kernel_that_fails_is_named_once_and_the_layers_compute(messages, monkeypatch):
    block, x = XCABlock(32, 2, eta=1.0, drop_path=0.0), torch.randn(1, 12, 32)
    expected = gradients(copy.deepcopy(block).double(), x.double(), 3, 4)
    assert not messages  # in float64, nobody expects kernels
    monkeypatch.setattr(attention, 'slope_kernel', Broken())  # of the backward pass
    for _ in range(2):
        assert_same(gradients(block, x, 3, 4), expected, 1e-4)
    assert messages == [
        'XCiT computes with the layers of PyTorch instead of kernels on cpu: kernel broken_kernel '
        'cannot run: ValueError: out of registers'
    ]


def test_a_kernel_that_fails_later_is_replaced_by_the_layers(messages, monkeypatch):
    block, x = XCABlock(32, 2, eta=1.0, drop_path=0.0).eval(), torch.randn(1, 12, 32)
    monkeypatch.setattr(gpu, '_is_verified', lambda module, x: True)
    with torch.no_grad():
        expected = cpu.block(block, x, 3, 4, (None, None, None))
        monkeypatch.setattr(attention, 'map_tokens_kernel', Broken())
        assert relative_error(block(x, 3, 4), expected) <= TOLERANCE
    assert len(messages) == 1 and not gpu.can_compute(block, x)


def test_the_log_says_once_that_a_layer_is_modified(messages):
    block = XCABlock(32, 2, eta=1.0, drop_path=0.0)
    block.mlp.fc1.register_forward_hook(lambda *_: None)
    with FakeTensorMode():
        x = torch.empty(1, 12, 32, device='cuda')
    assert form.fast_form(block, x, ALONE) is form.fast_form(block, x, ALONE) is None
    (message,) = messages
    assert 'kernels on cuda:0: a layer of XCABlock is modified, or has a shape' in message


def test_what_the_kernels_do_not_know_is_left_to_the_layers(messages, monkeypatch):
    monkeypatch.setattr(gpu, '_is_verified', lambda module, x: True)
    model, x = XCiT('n12', 16), torch.randn(1, 16, 128)
    block, image = model.blocks[0], torch.randn(1, 3, 32, 32)
    assert gpu.can_compute(block, x) and not gpu.can_compute(block, x.double())
    assert gpu.can_compute(model.patch_embed.proj, image)
    block.local_mp.conv1 = nn.Conv2d(128, 128, 5, padding=2, groups=128)
    assert not gpu.can_compute(block, x)
    block.attn.form = 'direct'
    assert not gpu.can_compute(block, x)
