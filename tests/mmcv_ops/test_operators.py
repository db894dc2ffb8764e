"""Values against float64 loops of a definition, gradients against finite differences.

The inputs keep a distance from places where a definition has a kink, such as pixel centers.
"""

from functools import partial

import pytest
import torch
from helpers import operator_loops as loops
from helpers.processes import in_processes
from mmcv import ops
from mmcv.ops.multi_scale_deform_attn import (
    MultiScaleDeformableAttnFunction,
    multi_scale_deformable_attn_pytorch,
)
from mmcv.ops.sync_bn import SyncBatchNormFunction
from torch.autograd.gradcheck import gradcheck as full_gradcheck
from torch.nn import functional as F

import xcit_mm  # noqa: F401  installs the stand-in before mmcv.ops is imported
from xcit_mm import mmcv_ops
from xcit_mm.base.errors import UserError

pytestmark = pytest.mark.skipif(not mmcv_ops.is_active(), reason='mmcv is compiled')

gradcheck = partial(full_gradcheck, fast_mode=True)  # along random directions
ROIS = torch.tensor(
    [[0, 1.3, 2.2, 17.9, 12.7], [1, -3.1, -2.3, 9.3, 30.8], [1, 5.4, 5.3, 6.1, 6.2]],
    dtype=torch.float64,
)


def doubles(*shapes: tuple[int, ...], scale: float = 1.0) -> list[torch.Tensor]:
    return [(scale * torch.randn(shape).double()).requires_grad_() for shape in shapes]


def between_pixels(*shape: int) -> torch.Tensor:
    """Return numbers whose distance from integers is 0.1 or more."""
    return (torch.randint(-2, 2, shape) + 0.1 + 0.8 * torch.rand(shape).double()).requires_grad_()


def attention_inputs(B=2, Q=3, h=2, d=3, P=2, shapes=((4, 6), (3, 2))):
    shapes = torch.tensor(shapes)
    starts = torch.cat([shapes.new_zeros(1), shapes.prod(1).cumsum(0)[:-1]])
    value = torch.randn(B, int(shapes.prod(1).sum()), h, d, dtype=torch.float64)
    locations = torch.rand(B, Q, h, len(shapes), P, 2, dtype=torch.float64) * 1.3 - 0.15
    weights = torch.rand(B, Q, h, len(shapes), P, dtype=torch.float64)
    for tensor in (value, locations, weights):
        tensor.requires_grad_()
    return value, shapes, starts, locations, weights


def test_deformable_attention_and_its_gradients():
    value, shapes, starts, locations, weights = inputs = attention_inputs()
    output = MultiScaleDeformableAttnFunction.apply(*inputs, 64)
    expected = multi_scale_deformable_attn_pytorch(value, shapes, locations, weights)
    torch.testing.assert_close(output, expected)

    def attend(value, locations, weights):
        return MultiScaleDeformableAttnFunction.apply(value, shapes, starts, locations, weights, 64)

    assert gradcheck(attend, (value, locations, weights))


@pytest.mark.parametrize(
    ('dtype', 'autocast'),
    [
        (torch.float32, False),
        (torch.float32, True),  # which must not round the sums
        (torch.float16, False),
        (torch.bfloat16, False),
    ],
)
def test_deformable_attention_of_each_type_is_that_of_mmcv_in_pytorch(dtype, autocast):
    """Of the values, places and weights that are rounded to this type."""
    rounded = [t.to(dtype) if t.is_floating_point() else t for t in attention_inputs(Q=40)]
    value, shapes, starts, locations, weights = (
        t.detach().requires_grad_(t.is_floating_point()) for t in rounded
    )
    with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
        arguments = value, shapes, starts, locations, weights, 64
        output = MultiScaleDeformableAttnFunction.apply(*arguments)
    assert output.dtype == dtype
    wide = [t.detach().float().requires_grad_() for t in (value, locations, weights)]
    expected = multi_scale_deformable_attn_pytorch(wide[0], shapes, *wide[1:])
    cotangent = torch.randn_like(expected).to(dtype)
    output.backward(cotangent)
    expected.backward(cotangent.float())
    tolerance = dict(rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
    torch.testing.assert_close(output.float(), expected, **tolerance)
    for tensor, reference in zip((value, locations, weights), wide, strict=True):
        torch.testing.assert_close(tensor.grad.float(), reference.grad, **tolerance)


@pytest.mark.parametrize(
    'stride, padding, dilation, groups, deform_groups', [(1, 1, 1, 1, 1), (2, 2, 2, 2, 4)]
)
def test_gradients_of_deformable_convolutions(stride, padding, dilation, groups, deform_groups):
    options = stride, padding, dilation, groups, deform_groups
    input, weight, bias = doubles((2, 4, 5, 6), (2, 4 // groups, 3, 2), (2,))
    size = F.conv2d(input, weight, None, stride, padding, dilation, groups).shape[2:]
    offset = between_pixels(2, deform_groups * 2 * 6, *size)
    (mask,) = doubles((2, deform_groups * 6, *size))

    def plain(input, offset, weight):
        return ops.deform_conv2d(input, offset, weight, *options)

    def modulated(input, offset, mask, weight, bias=None):
        return ops.modulated_deform_conv2d(input, offset, mask, weight, bias, *options)

    assert gradcheck(plain, (input, offset, weight))
    # Without gradients of the input and the offset, another call computes the weight's.
    assert gradcheck(plain, (input.detach(), offset.detach(), weight))
    assert gradcheck(modulated, (input, offset, mask, weight))
    assert gradcheck(modulated, (input, offset, mask, weight, bias))


@pytest.mark.parametrize('ratio', [0, 2])
def test_deformable_roi_pooling(ratio):
    maps, offset = doubles((2, 2, 9, 11), (3, 2, 3, 2))
    rois = ROIS.clamp(min=1.5)  # the regions of the test stay inside the map: no kink at its border

    def pool(maps, offset=None):
        return ops.deform_roi_pool(maps, rois, offset, (3, 2), 0.5, ratio, 0.1)

    arguments = maps, rois, (3, 2), 0.5, ratio
    torch.testing.assert_close(pool(maps), loops.deform_roi_pool(*arguments))
    moved = loops.deform_roi_pool(*arguments, offset, 0.1)
    torch.testing.assert_close(pool(maps, offset), moved)
    assert gradcheck(pool, (maps, offset))


@pytest.mark.parametrize('kernel_size, groups, scale', [(3, 1, 2), (5, 2, 1)])
def test_carafe(kernel_size, groups, scale):
    features, masks = doubles(
        (2, 4, 3, 4), (2, groups * kernel_size**2, 3 * scale, 4 * scale), scale=0.5
    )
    options = kernel_size, groups, scale
    expected = loops.carafe(features, masks, *options)
    torch.testing.assert_close(ops.carafe(features, masks, *options), expected)
    torch.testing.assert_close(ops.carafe_naive(features, masks, *options), expected)
    assert gradcheck(lambda *inputs: ops.carafe(*inputs, *options), (features, masks))


def test_masked_convolution_is_the_convolution_at_the_pixels_of_the_mask():
    (image,) = doubles((1, 3, 6, 7))
    layer = ops.MaskedConv2d(3, 4, (3, 5), padding=(1, 2)).double().requires_grad_(False)
    mask = torch.rand(1, 6, 7) > 0.5
    expected = F.conv2d(image, layer.weight, layer.bias, 1, (1, 2)) * mask[:, None]
    torch.testing.assert_close(layer(image, mask), expected)
    assert not layer(image, torch.zeros_like(mask)).any()


@pytest.mark.parametrize(
    ('sizes', 'mode', 'affine'),
    [
        ((4,), 'default', False),
        ((4, 4), 'default', True),
        ((3, 5), 'N', True),
    ],
)
def test_synchronized_batch_norm_is_that_of_the_batches_of_all_processes(
    tmp_path, sizes, mode, affine
):
    """mmcv averages the gradient of the parameters: each is that of the mean loss."""
    norm, count = torch.randn(3), len(sizes)
    batches = (torch.randn(sum(sizes), 3, 5, 6) * 2 + 1).split(sizes)
    cotangents = torch.randn(sum(sizes), 3, 5, 6).split(sizes)

    def compare(rank: int) -> None:
        whole = torch.nn.BatchNorm2d(3, affine=affine)
        joined, image = (x.clone().requires_grad_() for x in (torch.cat(batches), batches[rank]))
        running = whole.running_mean.clone(), whole.running_var.clone()
        weight = bias = None
        if affine:
            whole.weight.data.copy_(norm)
            weight, bias = norm.clone().requires_grad_(), torch.zeros(3, requires_grad=True)
        group = torch.distributed.group.WORLD if count > 1 else None
        arguments = image, *running, weight, bias, 0.1, 1e-5, group, count, mode
        expected, output = whole(joined), SyncBatchNormFunction.apply(*arguments)
        torch.testing.assert_close(output, expected.split(sizes)[rank])
        torch.testing.assert_close(running[0], whole.running_mean)
        if mode == 'default':  # with counts of this process
            torch.testing.assert_close(running[1], whole.running_var)
        if not affine:  # mmcv's function has no gradient without a weight
            return
        expected.backward(torch.cat(cotangents))
        output.backward(cotangents[rank])
        close = dict(rtol=1e-4, atol=1e-4 if count > 1 else 1e-5)
        torch.testing.assert_close(count * weight.grad, whole.weight.grad, **close)
        torch.testing.assert_close(count * bias.grad, whole.bias.grad, **close)
        if mode == 'default':  # with the mean gradient
            torch.testing.assert_close(image.grad, joined.grad.split(sizes)[rank], **close)

    in_processes(count, compare, tmp_path) if count > 1 else compare(0)


@pytest.mark.parametrize('gamma', [2.0, 0.0, 0.5])
def test_softmax_focal_loss(gamma):
    logits, weight = doubles((6, 4), (4,))
    target = torch.tensor([0, 3, 1, -1, 2, 2])

    def loss(logits):
        return ops.softmax_focal_loss(logits, target, gamma, 0.25, weight.detach(), 'sum')

    arguments = logits, target, gamma, 0.25, weight
    torch.testing.assert_close(loss(logits), loops.softmax_focal_loss(*arguments).sum())
    assert gradcheck(loss, logits)


@pytest.mark.parametrize(
    'function, shapes',
    [
        (lambda x: ops.softmax_focal_loss(x, torch.tensor([0, 2]), 2.0, 0.25), [(2, 3)]),
        (lambda x, masks: ops.carafe(x, masks, 5, 1, 2), [(1, 2, 3, 3), (1, 25, 6, 6)]),
    ],
)
def test_second_derivatives_are_refused(function, shapes):
    inputs = [torch.rand(shape, requires_grad=True) for shape in shapes]
    value = function(*inputs).square().sum()
    with pytest.raises(UserError, match='of mmcv has no second derivative: compute'):
        torch.autograd.grad(value, inputs, create_graph=True)


def test_nms_of_lanes():
    environment = pytest.importorskip('mmcv.ops.line_nms', reason='only the fork has it')
    lanes = torch.rand(40, 5 + 72).double()
    lanes[:, 4] = torch.randint(0, 80, (40,))
    lanes[:, 5:] = torch.rand(40, 1) * 40 + torch.rand(40, 72)
    scores = torch.rand(40).double()
    for top_k in (100, 5):
        keep, number, parent = environment.line_nms(lanes, scores, 2.0, top_k)
        expected = loops.line_nms(lanes, scores, 2.0, top_k)
        assert keep[:number].tolist() == expected
        assert len(expected) == number <= top_k
        assert parent[keep[:number]].tolist() == list(range(1, number + 1))


EXACT = torch.tensor([[0, 1.25, 2.25, 17.5, 12.75], [1, -3, -2.5, 9.25, 30]])  # in 16 bits, too
TARGET = torch.arange(2 * 6 * 8) % 9
IN_16_BIT = {
    'deform_roi_pool': lambda x: ops.deform_roi_pool(x, EXACT.to(x), None, (3, 2), 0.5, 2, 0.1),
    'deform_conv2d': lambda x: ops.deform_conv2d(x, x[:, [0] * 18], x[:, :, :3, :3], 1, 1),
    'modulated_deform_conv2d': lambda x: ops.modulated_deform_conv2d(
        x, x[:, [0] * 18], x, x[:, :, :3, :3], None, 1, 1
    ),
    'sigmoid_focal_loss': lambda x: ops.sigmoid_focal_loss(
        x.movedim(1, 3).reshape(-1, 9), TARGET, 2.0, 0.25, None, 'none'
    ),
    'softmax_focal_loss': lambda x: ops.softmax_focal_loss(
        x.movedim(1, 3).reshape(-1, 9), TARGET, 2.0, 0.25, None, 'mean'
    ),
    'carafe': lambda x: ops.carafe(x, x, 3, 1, 1),
    'psa_mask': ops.PSAMask('collect', (3, 3)),
}


@pytest.mark.parametrize('name', IN_16_BIT)
def test_an_operator_in_16_bit_is_that_of_the_rounded_numbers(name):
    dtype = torch.bfloat16
    narrow = torch.randn(2, 9, 6, 8).to(dtype).requires_grad_()
    wide = narrow.detach().float().requires_grad_()
    output, expected = (IN_16_BIT[name](x) for x in (narrow, wide))
    cotangent = torch.randn_like(expected).to(dtype)
    (gradient,) = torch.autograd.grad(output, narrow, cotangent)
    (expected_gradient,) = torch.autograd.grad(expected, wide, cotangent.float())
    assert output.dtype == gradient.dtype == dtype
    for value, reference in ((output, expected), (gradient, expected_gradient)):
        largest = float(reference.detach().abs().max())
        close = dict(rtol=0, atol=4 * torch.finfo(dtype).eps * largest)
        torch.testing.assert_close(value.float(), reference, **close)
