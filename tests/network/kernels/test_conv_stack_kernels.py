import copy

import pytest
import torch
from helpers.processes import in_processes
from torch import nn
from torch.nn import functional as F

from xcit_mm.network.conv_stack import ConvStack
from xcit_mm.network.fast.kernels.norm_gelu import (
    NormGeluConv,
    backward_sums_kernel,
    conv_stack,
    norm_gelu_backward_kernel,
    norm_gelu_kernel,
    partials_kernel,
)
from xcit_mm.network.fast.unmodified import flat_layers, is_known_stack

SIZES = [(1, 16, 1, 5), (2, 24, 13, 21), (1, 48, 33, 2)]


def error(value: torch.Tensor, reference: torch.Tensor) -> float:
    return ((value.double() - reference).norm() / reference.norm()).item()


def randomized(module: nn.Module) -> nn.Module:
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            tensor.data.uniform_(0.5, 1.5)
    return module


def stem(C: int) -> nn.Module:
    layers = []
    for c_in, c_out in ((3, C // 2), (C // 2, C)):
        layers += [nn.Conv2d(c_in, c_out, 3, 2, 1, bias=False), nn.BatchNorm2d(c_out), nn.GELU()]
    return ConvStack(*layers[:-1])


def twice(C: int) -> nn.Module:
    first, second = (nn.ConvTranspose2d(C, C, 2, 2) for _ in range(2))
    return ConvStack(first, nn.BatchNorm2d(C), nn.GELU(), second)


def norm_gelu(y: torch.Tensor, bn: nn.Module) -> torch.Tensor:
    """Return GELU(BatchNorm(y)) without a convolution after it."""
    y = y.contiguous(memory_format=torch.channels_last)
    return NormGeluConv.apply(y, bn.weight, bn.bias, None, None, bn, True, None, y.dtype)


def channels_last(x: torch.Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('training', [True, False])
def test_norm_and_gelu_are_those_of_the_layers(size, training):
    bn = randomized(nn.BatchNorm2d(size[1])).train(training)
    exact = copy.deepcopy(bn).double()
    y = (2 * torch.randn(size) + 3).requires_grad_()
    grad = torch.randn(size)
    out = norm_gelu(y, bn)
    out.backward(grad)
    reference = y.detach().double().requires_grad_()
    expected = F.gelu(exact(reference))
    expected.backward(grad.double())
    assert channels_last(out) and error(out, expected) < 3e-6
    assert error(y.grad, reference.grad) < 3e-6
    for mine, theirs in zip(bn.parameters(), exact.parameters(), strict=True):
        assert error(mine.grad, theirs.grad) < 3e-6
    for mine, theirs in zip(bn.buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs.to(mine.dtype), rtol=1e-6, atol=1e-6)


def test_a_large_mean_costs_no_digits():
    bn = nn.BatchNorm2d(48)
    y = torch.randn(2, 48, 40, 30) + 300
    out = norm_gelu(y, bn)
    expected = F.gelu(F.batch_norm(y.double(), None, None, training=True))
    plain = F.gelu(F.batch_norm(y, None, None, training=True))
    assert error(out, expected) < max(2e-5, error(plain, expected))


@pytest.mark.parametrize('make, C, size', [(stem, 32, (2, 3, 21, 13)), (twice, 24, (1, 24, 3, 5))])
@pytest.mark.parametrize('training', [True, False])
def test_stacks_are_those_of_the_layers(make, C, size, training):
    stack = make(C).train(training)
    for norm in stack.modules():
        if isinstance(norm, nn.BatchNorm2d):
            randomized(norm)
    plain, halves, exact = (copy.deepcopy(stack) for _ in range(3))
    exact.double()
    x = torch.randn(size)
    inputs = [x.clone().requires_grad_(), x.double().requires_grad_()]
    out, expected = conv_stack(list(flat_layers(stack)), inputs[0]), exact(inputs[1])
    assert is_known_stack(list(flat_layers(stack)))
    grad = torch.randn(out.shape)
    out.backward(grad)
    expected.backward(grad.double())
    assert channels_last(out) and error(out, expected) < 3e-6
    assert error(inputs[0].grad, inputs[1].grad) < 3e-6
    for (name, mine), theirs in zip(stack.named_parameters(), exact.parameters(), strict=True):
        if name == '0.bias' and training:  # which BatchNorm removes
            assert mine.grad.norm() < 1e-4
        else:
            assert error(mine.grad, theirs.grad) < 3e-6, name
    if not training:
        with torch.no_grad():
            assert error(conv_stack(list(flat_layers(stack)), x), expected) < 3e-6

    # In 16 bits, the errors of the kernels are not larger than the errors of the layers.
    errors = []
    for form in (plain, lambda x: conv_stack(list(flat_layers(halves)), x)):
        image = x.clone().requires_grad_()
        with torch.autocast('cpu', torch.float16):
            out = form(image)
        out.backward(grad.to(out.dtype))
        errors.append((error(out, expected), error(image.grad, inputs[1].grad)))
    assert out.dtype == (torch.float32 if make is stem else torch.float16)
    for theirs, mine in zip(*errors, strict=True):
        assert mine < 1.05 * theirs
    for (name, mine), theirs, reference in zip(
        halves.named_parameters(), plain.parameters(), exact.parameters(), strict=True
    ):
        if name != '0.bias':
            limit = max(1e-3, 1.2 * error(theirs.grad, reference.grad))
            assert error(mine.grad, reference.grad) < limit, name


def test_other_stacks_are_refused():
    conv, norm, act = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.GELU()
    assert all(map(is_known_stack, ([conv], [conv, norm], [conv, norm, act, conv])))
    assert not any(map(is_known_stack, ([], [norm], [conv, norm, act], [conv, act, norm])))
    assert not is_known_stack([nn.Conv2d(8, 8, 3, padding='same')])
    assert not is_known_stack([nn.Conv2d(8, 8, 3, padding=1, padding_mode='reflect')])
    assert not is_known_stack([conv, nn.BatchNorm2d(8, affine=False)])
    assert not is_known_stack([conv, norm, nn.GELU('tanh'), conv])


def test_processes_share_their_statistics(tmp_path, monkeypatch):
    bn = randomized(nn.SyncBatchNorm(16))
    exact = nn.BatchNorm2d(16).double()
    exact.load_state_dict(bn.state_dict())
    y, grad = torch.randn(2, 3, 16, 4, 5)
    reference = y.double().requires_grad_()
    expected = F.gelu(exact(reference))
    expected.backward(grad.double())

    def compare(rank: int) -> None:
        share = slice(0, 1) if rank == 0 else slice(1, 3)
        mine = y[share].clone().requires_grad_()
        out = norm_gelu(mine, bn)
        out.backward(grad[share])
        assert error(out, expected[share]) < 3e-6
        assert error(mine.grad, reference.grad[share]) < 3e-6
        for parameter in bn.parameters():
            torch.distributed.all_reduce(parameter.grad)
        for mine, theirs in zip(bn.parameters(), exact.parameters(), strict=True):
            assert error(mine.grad, theirs.grad) < 3e-6
        for mine, theirs in zip(bn.buffers(), exact.buffers(), strict=True):
            torch.testing.assert_close(mine, theirs.to(mine.dtype), rtol=1e-6, atol=1e-6)

    in_processes(2, compare, tmp_path)


# Types of arguments, and constants.
KERNELS = {
    partials_kernel: ('{0} *fp32 i32 i32', {}),
    norm_gelu_kernel: ('{0} *fp32 None None None None None {0} i32', dict(ACTIVATES=True)),
    backward_sums_kernel: ('{0} {0} *fp32 *fp32 i32 i32', dict(ACTIVATES=True)),
    norm_gelu_backward_kernel: ('{0} {0} *fp32 *fp32 {0} i32', dict(ACTIVATES=True)),
}


@pytest.mark.parametrize('kernel', KERNELS, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize(
    'dtype, C, width, capability', [('*bf16', 96, 384, 90), ('*fp32', 384, 384, 80)]
)
def test_kernels_compile_without_spills(compiled, kernel, dtype, C, width, capability):
    arguments, options = KERNELS[kernel]
    constants = dict(C=C, WIDTH=width, BLOCK_R=16, BLOCK_W=128, num_warps=4)
    result = compiled(kernel, arguments.format(dtype), capability, **options, **constants)
    assert result.spilled == 0
    assert result.registers <= 102  # so that five programs share the registers of a multiprocessor
