"""Whole blocks, stacks and backbones in kernels, by Triton's interpreter, against the layers."""

import copy

import pytest
import torch
from helpers import randomize, relative_error
from helpers.small_xcit import small_xcit
from torch import Tensor, nn

from xcit_mm import XCiT, accelerate
from xcit_mm.network.archs import ARCHS
from xcit_mm.network.fast import form, gpu
from xcit_mm.network.layers import XCABlock

TOLERANCE = 3e-6


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
    return values | {n: b.clone() for n, b in module.named_buffers()}


def worst(values: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    assert values.keys() == exact.keys()
    return max(relative_error(values[name].double(), exact[name].double()) for name in exact)


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize(
    ('arch', 'B', 'H', 'W'),
    [('n12', 2, 13, 21), ('t24', 1, 1, 19), ('s12', 3, 33, 2), ('m24', 1, 5, 7), ('l24', 2, 4, 6)],
)
def test_a_block_of_each_width(monkeypatch, arch, B, H, W, training):
    C, _, heads, *_ = ARCHS[arch]
    block = XCABlock(C, heads, eta=1.0, drop_path=0.0).train(training)
    randomize(block)
    x = torch.randn(B, H * W, C)
    exact = gradients(block.double(), x.double(), H, W)
    monkeypatch.setattr(form, 'cpu', gpu)
    assert worst(gradients(block.float(), x, H, W), exact) <= TOLERANCE


@pytest.mark.parametrize('eta', [1.0, 1e-5])
def test_float16_is_no_less_exact_than_the_layers_under_autocast(monkeypatch, eta):
    block = XCABlock(64, 4, eta=eta, drop_path=0.3)
    randomize(block)
    with torch.no_grad():
        for gamma in (block.gamma1, block.gamma2, block.gamma3):
            gamma *= eta
    x, draws = torch.randn(3, 7 * 9, 64), [torch.tensor([1.5, 0, 1]).view(3, 1, 1)] * 3
    args = 7, 9, form.ALONE, draws
    exact = gradients(block.double(), x.double(), 7, 9, form.ALONE, [d.double() for d in draws])
    block = block.float()
    with monkeypatch.context() as patch:
        patch.setattr('xcit_mm.network.layers.fast_form', lambda *args: None)
        plain = gradients(block, x, *args, dtype=torch.float16)
    with monkeypatch.context() as patch:
        patch.setattr('xcit_mm.network.layers.fast_form', lambda *args: gpu)
        kernels = gradients(block, x, *args, dtype=torch.float16)
    for name, value in exact.items():
        error, bound = (relative_error(v[name].double(), value.double()) for v in (kernels, plain))
        assert error <= 1.1 * bound + 1e-6, name


@pytest.mark.parametrize(
    ('patch_size', 'options'),
    [
        (16, dict(with_cp=True)),
        (8, dict(norm_eval=True, frozen_stages=2)),
        (16, dict(pad_maps=True, out_norm=True, start_level=1)),
    ],
)
def test_a_backbone_with_options(monkeypatch, patch_size, options):
    model = small_xcit(patch_size, drop_path_rate=0.0, **options)
    randomize(model)
    image = torch.randn(2, 3, 70, 101)
    exact = gradients(model.double(), image.double())
    monkeypatch.setattr(form, 'cpu', gpu)
    assert worst(gradients(model.float(), image), exact) <= 1e-5


def test_inference_equals_evaluation_with_a_gradient(in_kernels):
    model, image = small_xcit(drop_path_rate=0.5).eval(), torch.randn(2, 3, 70, 101)
    randomize(model)
    before = image.clone()
    with torch.no_grad():
        maps = model(image)
    for a, b in zip(maps, model(image), strict=True):
        assert relative_error(a, b) <= TOLERANCE
    assert torch.equal(image, before)


def test_a_model_of_float16(in_kernels):
    model, image = small_xcit().eval(), torch.randn(1, 3, 64, 64)
    randomize(model)
    maps = model(image)
    model = model.half()
    for narrow, wide in zip(model(image.half()), maps, strict=True):
        assert narrow.dtype == torch.float16
        assert relative_error(narrow.float(), wide) <= 5e-3


def test_an_empty_batch(in_kernels):
    model, image = small_xcit(norm_eval=True), torch.empty(0, 3, 64, 64)
    maps = model(image)
    sum(m.sum() for m in maps).backward()
    assert maps[0].shape == (0, 32, 16, 16)
    assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)


def test_an_accelerated_model_of_timm(monkeypatch):
    timm = pytest.importorskip('timm')
    model = timm.create_model('xcit_nano_12_p16_224').eval()
    randomize(model)
    image = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        expected = model(image)
        monkeypatch.setattr(form, 'cpu', gpu)
        assert relative_error(accelerate(model)(image), expected) <= 1e-5


def test_fifty_steps_of_training(monkeypatch):
    def losses() -> list[float]:
        torch.manual_seed(0)
        model = small_xcit(drop_path_rate=0.2).train()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        values = []
        for _ in range(50):
            maps = model(torch.randn(2, 3, 32, 32))
            loss = sum((m - 1).square().mean() for m in maps)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            values.append(loss.item())
        return values

    expected = losses()
    monkeypatch.setattr(form, 'cpu', gpu)
    assert losses() == pytest.approx(expected, rel=1e-3)
    assert expected[-1] < expected[0]


def test_a_kernel_that_fails_is_named_once_and_the_layers_compute(monkeypatch):
    from xcit_mm.network.fast.kernels import launch

    def fail(*args: object, **options: object) -> None:
        raise launch.KernelError('kernel normalize_kernel cannot run: out of registers')

    messages = []
    for name in ('attention', 'conv_stack', 'norm'):
        monkeypatch.setattr(f'xcit_mm.network.fast.kernels.{name}.launch', fail)
    monkeypatch.setattr(gpu, 'print_log', lambda message, *_: messages.append(message))
    monkeypatch.setattr(gpu, '_works_for', {})
    monkeypatch.setattr(gpu, '_has_kernels', lambda device: True)
    monkeypatch.setattr(torch.cuda, 'is_current_stream_capturing', lambda: False)
    model = small_xcit().eval()
    block, x = model.blocks[0], torch.randn(1, 16, 32)
    gpu._explain.cache_clear()
    assert not gpu.can_compute(block, x) and not gpu.can_compute(block, x)
    assert messages == [
        'XCiT computes with the layers of PyTorch instead of kernels on cpu: '
        'kernel normalize_kernel cannot run: out of registers'
    ]


def test_what_the_kernels_do_not_know_is_left_to_the_layers(monkeypatch):
    monkeypatch.setattr(gpu, '_has_kernels', lambda device: True)
    monkeypatch.setattr(gpu, '_works', lambda module, x: True)
    model, x = XCiT('n12', 16), torch.randn(1, 16, 128)
    block, image = model.blocks[0], torch.randn(1, 3, 32, 32)
    assert gpu.can_compute(block, x) and not gpu.can_compute(block, x.double())
    assert gpu.can_compute(model.patch_embed.proj, image)
    block.local_mp.conv1 = nn.Conv2d(128, 128, 5, padding=2, groups=128)
    assert not gpu.can_compute(block, x)
    model.patch_embed.proj[1] = nn.ReLU()
    assert not gpu.can_compute(model.patch_embed.proj, image)
