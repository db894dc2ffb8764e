"""Blocks, stacks and backbones in compiled kernels, against the layers of PyTorch."""

import copy

import pytest
import torch
from helpers import randomize, relative_error
from torch import Tensor, nn

from xcit_mm import XCiT
from xcit_mm.network.archs import ARCHS
from xcit_mm.network.fast import gpu
from xcit_mm.network.layers import XCABlock

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason='there is no GPU'),
]
LAYERS = 'xcit_mm.network.layers.fast_form'


def gradients(module: nn.Module, x: Tensor, *args: object) -> dict[str, Tensor]:
    module, x = copy.deepcopy(module), x.clone()
    x.requires_grad_(x.dim() == 3)  # layers compute for images that require a gradient
    outputs = module(x, *args)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator('cuda').manual_seed(0)
    cotangents = [torch.randn(y.shape, generator=generator, device='cuda').to(y) for y in outputs]
    torch.autograd.backward(outputs, cotangents)
    values = {f'output {i}': y.detach() for i, y in enumerate(outputs)}
    values |= {'input': x.grad} if x.requires_grad else {}
    values |= {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return values | {n: b.clone() for n, b in module.named_buffers()}


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize(('H', 'W'), [(50, 84), (33, 2), (1, 200), (100, 168)])
@pytest.mark.parametrize('arch', ['n12', 't12', 's12', 'm24', 'l24'])
def test_a_block_is_no_less_exact_than_the_layers(monkeypatch, arch, H, W, training):
    C, _, heads, *_ = ARCHS[arch]
    block = XCABlock(C, heads, eta=1.0, drop_path=0.0).train(training)
    randomize(block)
    block, x = block.cuda(), torch.randn(2, H * W, C, device='cuda')
    assert gpu.can_compute(block, x)
    exact = gradients(copy.deepcopy(block).double(), x.double(), H, W)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        with torch.autocast('cuda', dtype, enabled=dtype != torch.float32):
            kernels = gradients(block, x, H, W)
            with monkeypatch.context() as patch:
                patch.setattr(LAYERS, lambda *args: None)
                layers = gradients(block, x, H, W)
        for name, value in exact.items():
            error, bound = (relative_error(v[name].double(), value) for v in (kernels, layers))
            assert error <= (3e-6 if dtype == torch.float32 else 1.1 * bound + 1e-6), (name, dtype)


@pytest.mark.parametrize('patch_size', [8, 16])
def test_a_backbone_trains_and_infers(monkeypatch, patch_size):
    model = XCiT('t12', patch_size, drop_path_rate=0.0)
    randomize(model)
    model, image = model.cuda(), torch.randn(2, 3, 203, 331, device='cuda')
    exact = gradients(copy.deepcopy(model).double(), image.double())
    for name, value in gradients(model, image).items():
        assert relative_error(value.double(), exact[name]) <= 1e-4, name
    with torch.no_grad():
        maps = model.eval()(image)
    for a, b in zip(maps, model(image), strict=True):
        assert relative_error(a, b) <= 1e-5


def test_a_backbone_is_captured_in_a_graph():
    model, image = XCiT('n12', 16).cuda(), torch.randn(2, 3, 160, 160, device='cuda')
    model.eval()
    graphed = torch.cuda.make_graphed_callables(copy.deepcopy(model), (image,))
    for value, y in zip(graphed(image), model(image), strict=True):
        assert torch.equal(value, y)


def test_results_are_the_same_every_time():
    model, image = XCiT('n12', 8).cuda(), torch.randn(2, 3, 203, 331, device='cuda')
    with torch.autocast('cuda', torch.bfloat16):
        first, second = (gradients(model, image) for _ in range(2))
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
