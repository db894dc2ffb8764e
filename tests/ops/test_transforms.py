"""Transforms of PyTorch: the backbone and the attention against autograd of plain layers."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import timm
import torch
from helpers import randomize, relative_error
from helpers.small_xcit import small_xcit
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils._pytree import tree_flatten, tree_map

from xcit_mm import accelerate

TOLERANCE = 1e-9
SIZES = {  # few tokens: the direct form; many: the Gram form
    (8, 'few'): (2, 3, 57, 71),
    (8, 'many'): (2, 3, 110, 128),
    (16, 'few'): (2, 3, 64, 90),
    (16, 'many'): (2, 3, 217, 250),
}

Loss = Callable[[dict[str, Tensor], Tensor], Tensor]


def loss_of(model: nn.Module) -> Loss:
    """The loss as a function of the parameters and images, random numbers drawn from a seed."""

    def loss(params: dict[str, Tensor], image: Tensor) -> Tensor:
        torch.manual_seed(1)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        maps = functional_call(model, (params, buffers), (image,))
        return sum(y.square().mean() + y.sin().mean() for y in maps)

    return loss


def with_called_layers(model: nn.Module) -> nn.Module:
    """A copy that calls each of its layers in turn, because a hook might observe them."""
    model = copy.deepcopy(model)
    model.with_cp = False
    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda *_: None)
    return model


def inner(a: object, b: object) -> Tensor:
    pairs = zip(tree_flatten(a)[0], tree_flatten(b)[0], strict=True)
    return sum((x * y).sum() for x, y in pairs)


def derivatives(loss: Loss, params: dict, image: Tensor, tangents: tuple) -> dict[str, object]:
    """Value, gradient, derivative along the tangents and Hessian times tangents, by autograd."""
    params, image = tree_map(lambda t: t.detach().requires_grad_(), (params, image))
    flat, spec = tree_flatten((params, image))
    value = loss(params, image)
    gradient = torch.autograd.grad(value, flat, create_graph=True)
    slope = inner(gradient, tangents)
    product = torch.autograd.grad(slope, flat)
    return dict(value=value, gradient=list(gradient), slope=slope, product=list(product))


def by_grad(loss, params, image, tangents):
    return dict(gradient=grad(loss, argnums=(0, 1))(params, image))


def by_vjp(loss, params, image, tangents):
    value, pullback = vjp(loss, params, image)
    return dict(value=value, gradient=pullback(torch.ones_like(value)))


def by_jvp(loss, params, image, tangents):
    value, slope = jvp(loss, (params, image), tangents)
    with torch.no_grad():
        assert torch.equal(jvp(loss, (params, image), tangents)[1], slope)
    return dict(value=value, slope=slope)


def by_forward_mode(loss, params, image, tangents):
    with forward_ad.dual_level():
        inputs = tree_map(forward_ad.make_dual, (params, image), tangents)
        value, slope = forward_ad.unpack_dual(loss(*inputs))
    return dict(value=value, slope=slope)


def by_jvp_of_grad(loss, params, image, tangents):
    gradient, product = jvp(grad(loss, argnums=(0, 1)), (params, image), tangents)
    return dict(gradient=gradient, product=product)


def by_grad_of_grad(loss, params, image, tangents):
    def slope(*inputs: object) -> Tensor:
        return inner(grad(loss, argnums=(0, 1))(*inputs), tangents)

    return dict(product=grad(slope, argnums=(0, 1))(params, image))


TRANSFORMS = [by_grad, by_vjp, by_jvp, by_forward_mode, by_jvp_of_grad, by_grad_of_grad]


@pytest.fixture(scope='module')
def expected():
    """Derivatives of the backbone whose layers are called, computed once for all transforms."""
    computed = {}

    def expect(key: tuple, model: nn.Module, *inputs: object) -> dict[str, object]:
        if key not in computed:
            computed[key] = derivatives(loss_of(with_called_layers(model)), *inputs)
        return computed[key]

    return expect


def assert_equal(values: dict[str, object], expected: dict[str, object]) -> None:
    for name, value in values.items():
        leaves, wanted = (tree_flatten(v)[0] for v in (value, expected[name]))
        largest = max(w.norm().item() for w in wanted)
        for a, b in zip(leaves, wanted, strict=True):
            assert (a - b).norm() <= TOLERANCE * max(b.norm().item(), 1e-3 * largest), name


def inputs_of(model: nn.Module, shape: tuple[int, ...]) -> tuple[dict, Tensor, tuple]:
    params = {name: p.detach() for name, p in model.named_parameters()}
    image = torch.randn(shape, dtype=torch.float64)
    return params, image, tree_map(torch.randn_like, (params, image))


@pytest.mark.parametrize('transform', [derivatives, *TRANSFORMS])
@pytest.mark.parametrize('training, options', [
    (False, {}),
    (True, dict(with_cp=True, frozen_stages=1, drop_path_rate=0.3)),
])  # fmt: skip
@pytest.mark.parametrize('patch_size, tokens', SIZES)
def test_the_backbone_in_float64(patch_size, tokens, training, options, transform, expected):
    model = small_xcit(patch_size, **options).double().train(training)
    randomize(model)
    inputs = inputs_of(model, SIZES[patch_size, tokens])
    key = patch_size, tokens, training
    assert_equal(transform(loss_of(model), *inputs), expected(key, model, *inputs))
