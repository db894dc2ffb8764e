"""Kernels on tensors of a GPU that have no values, as tracers and planners of memory use them."""

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from xcit_mm.network.fast import gpu
from xcit_mm.network.fast.kernels.attention import cross_covariance_attention
from xcit_mm.network.fast.kernels.norm_gelu import conv_stack
from xcit_mm.network.fast.unmodified import flat_layers
from xcit_mm.network.layers import XCA, ConvPatchEmbed, XCABlock


@pytest.fixture(params=['cuda', 'cpu'], autouse=True)
def _without_values(request):
    with FakeTensorMode(), torch.device(request.param):
        yield


def assert_gradients(out: Tensor, x: Tensor, layer: nn.Module) -> None:
    """Input and parameters get gradients like themselves.

    PyTorch computes no gradients for a GPU that is not there, but kernels do not ask for the device
    of fake tensors.
    """
    assert out.device == x.device
    if x.device.type == 'cpu':
        out.sum().backward()
        for tensor in (x, *layer.parameters()):
            assert tensor.grad.shape == tensor.shape and tensor.grad.dtype == tensor.dtype


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('dtype', [None, torch.bfloat16])
def test_a_block(training, dtype):
    block = XCABlock(96, 2, 1.0, 0.0).train(training)
    x = torch.empty(2, 35, 96, requires_grad=True)
    with torch.autocast('cpu', dtype, enabled=dtype is not None and x.device.type == 'cpu'):
        out = gpu.block(block, x, 5, 7, [torch.ones(2, 1, 1)] * 3)
    assert out.shape == x.shape and out.dtype == x.dtype and out.is_contiguous()
    assert_gradients(out, x, block)


def test_a_stack_of_convolutions():
    stem, image = ConvPatchEmbed(64, 16), torch.empty(2, 3, 33, 47, requires_grad=True)
    for grad in (False, True):
        with torch.set_grad_enabled(grad), torch.autocast('cpu', torch.bfloat16):
            out = conv_stack(list(flat_layers(stem.proj)), image)
        assert out.shape == (2, 64, 3, 3) and out.dtype == torch.float32
        assert out.is_contiguous(memory_format=torch.channels_last)
    assert_gradients(out, image, stem)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_the_attention(dtype):
    attn, x = XCA(96, 2), torch.empty(2, 35, 96, dtype=dtype, requires_grad=True)
    out = cross_covariance_attention(x, *attn.weights())
    assert out.shape == x.shape and out.dtype == dtype and out.is_contiguous()
    assert_gradients(out, x, attn)
