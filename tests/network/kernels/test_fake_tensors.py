"""Kernels on tensors of a GPU that have no values, as tracers and planners of memory use them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from xcit_mm.network.fast.kernels.attention import (
    attention_branch,
    cross_covariance_attention,
)
from xcit_mm.network.fast.kernels.interaction import interaction_branch
from xcit_mm.network.fast.kernels.mlp import mlp_branch
from xcit_mm.network.fast.kernels.norm_gelu import NormGeluConv, conv_stack
from xcit_mm.network.fast.unmodified import flat_layers
from xcit_mm.network.layers import XCA, ConvPatchEmbed, XCABlock


@pytest.fixture(params=['cuda', 'cpu'], autouse=True)
def _without_values(request):
    with FakeTensorMode(), torch.device(request.param):
        yield


def checked(form: Callable[..., Tensor], x: Tensor, layer: nn.Module) -> Tensor:
    """Return the output, if the input and all parameters get gradients like themselves.

    PyTorch computes no gradients for a GPU that is not there, but kernels do not ask for the device
    of fake tensors.
    """
    out = form(x)
    assert out.device == x.device
    if x.device.type == 'cpu':
        out.sum().backward()
        for tensor in (x, *layer.parameters()):
            assert tensor.grad.shape == tensor.shape and tensor.grad.dtype == tensor.dtype
    return out


def is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_norm_gelu(training, dtype):
    bn = nn.BatchNorm2d(48).train(training)
    y = torch.empty(2, 48, 5, 7, dtype=dtype, memory_format=torch.channels_last).requires_grad_()
    out = checked(
        lambda y: NormGeluConv.apply(y, bn.weight, bn.bias, None, None, bn, True, None, dtype),
        y,
        bn,
    )
    assert out.shape == y.shape and out.dtype == dtype
    assert is_channels_last(out)


@pytest.mark.parametrize('grad', [True, False])
def test_conv_stack(grad):
    stem = ConvPatchEmbed(64, 16)
    image = torch.empty(2, 3, 33, 47, requires_grad=True)

    def form(x: Tensor) -> Tensor:
        with torch.autocast('cpu', torch.bfloat16):
            return conv_stack(list(flat_layers(stem.proj)), x)

    with torch.set_grad_enabled(grad):
        out = checked(form, image, stem) if grad else form(image)
    assert out.shape == (2, 64, 3, 3) and out.dtype == torch.float32
    assert is_channels_last(out)


@pytest.mark.parametrize('dtype', [None, torch.bfloat16])
def test_attention_branch(dtype):
    block = XCABlock(96, 2, 1.0, 0.0)
    norm, attn = block.norm1, block.attn
    parameters = norm.weight, norm.bias, norm.eps, *attn.weights(), block.gamma1
    x = torch.empty(2, 35, 96, requires_grad=True)
    draw = torch.ones(2)
    branch = nn.ParameterList([norm.weight, norm.bias, *attn.parameters(), block.gamma1])
    out = checked(lambda x: attention_branch(x, *parameters, draw, dtype), x, branch)
    assert out.shape == x.shape and out.dtype == x.dtype and out.is_contiguous()


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_cross_covariance_attention(dtype):
    attn = XCA(96, 2)
    x = torch.empty(2, 35, 96, dtype=dtype, requires_grad=True)
    out = checked(lambda x: cross_covariance_attention(x, *attn.weights()), x, attn)
    assert out.shape == x.shape and out.dtype == dtype and out.is_contiguous()


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('dtype', [None, torch.bfloat16])
def test_interaction_branch(training, dtype):
    block = XCABlock(96, 2, 1.0, 0.0).train(training)
    norm, (conv1, _, bn, conv2) = block.norm3, block.local_mp.children()
    before = norm.weight, norm.bias, norm.eps, conv1.weight, conv1.bias
    after = bn, bn.weight, bn.bias, conv2.weight, conv2.bias, block.gamma3
    x = torch.empty(2, 35, 96, requires_grad=True)
    draw = torch.ones(2)
    branch = nn.ParameterList([*norm.parameters(), *block.local_mp.parameters(), block.gamma3])
    out = checked(lambda x: interaction_branch(x, 5, 7, *before, *after, draw, dtype), x, branch)
    assert out.shape == x.shape and out.dtype == x.dtype and out.is_contiguous()


@pytest.mark.parametrize('dtype', [None, torch.bfloat16])
def test_mlp_branch(dtype):
    block = XCABlock(96, 2, 1.0, 0.0)
    norm, (fc1, fc2) = block.norm2, block.mlp.children()
    parameters = norm.weight, norm.bias, norm.eps, fc1.weight, fc1.bias, fc2.weight, fc2.bias
    x = torch.empty(2, 35, 96, requires_grad=True)
    last = block.gamma2, torch.ones(2), dtype
    branch = nn.ParameterList([*norm.parameters(), *block.mlp.parameters(), block.gamma2])
    out = checked(lambda x: mlp_branch(x, *parameters, *last), x, branch)
    assert out.shape == x.shape and out.dtype == x.dtype and out.is_contiguous()
