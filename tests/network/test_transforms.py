"""Transforms of PyTorch: the backbone and the attention against autograd of plain layers."""

import copy
from collections.abc import Callable

import pytest
import torch
from helpers import randomize, relative_error
from timm.models.xcit import Xcit
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.checkpoint import checkpoint

from xcit_mm import XCiT, accelerate

TOLERANCE = 1e-9
SIZES = {  # few tokens: the direct form; many: the Gram form
    (8, 'many'): (2, 3, 97, 112),
    (16, 'few'): (2, 3, 64, 90),
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
    flat, _ = tree_flatten((params, image))
    value = loss(params, image)
    gradient = torch.autograd.grad(value, flat, create_graph=True)
    slope = inner(gradient, tangents)
    product = torch.autograd.grad(slope, flat)
    return dict(value=value, gradient=list(gradient), slope=slope, product=list(product))


def by_grad(loss, params, image, tangents):
    return dict(gradient=grad(loss, argnums=(0, 1))(params, image))


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


TRANSFORMS = [by_grad, by_jvp, by_forward_mode, by_jvp_of_grad, by_grad_of_grad]


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
    # Not the model's own: functional_call replaces them for the forward pass alone.
    params = {name: 1.1 * p.detach() for name, p in model.named_parameters()}
    image = torch.randn(shape, dtype=torch.float64)
    return params, image, tree_map(torch.randn_like, (params, image))


def small_model(patch_size: int, **options) -> XCiT:
    arch = dict(embed_dim=16, depth=4, num_heads=2, eta=1.0)
    model = XCiT(arch, patch_size, out_indices=(0, 1, 2, 3), **options).double()
    randomize(model)
    return model


@pytest.mark.parametrize('transform', [derivatives, *TRANSFORMS])
@pytest.mark.parametrize(
    'training, options',
    [(False, {}), (True, dict(with_cp=True, frozen_stages=1, drop_path_rate=0.3))],
)
@pytest.mark.parametrize('patch_size, tokens', SIZES)
def test_the_backbone_in_float64(patch_size, tokens, training, options, transform, expected):
    model = small_model(patch_size, **options).train(training)
    inputs = inputs_of(model, SIZES[patch_size, tokens])
    wanted = expected((patch_size, tokens, training), model, *inputs)
    assert_equal(transform(loss_of(model), *inputs), wanted)


@pytest.mark.parametrize('size', [(64, 64), (208, 224)])
def test_an_accelerated_model_of_timm(size):
    model = Xcit(size, patch_size=16, embed_dim=16, depth=2, num_heads=2, num_classes=3)
    model = model.double().eval()
    randomize(model)
    inputs = inputs_of(model, (2, 3, *size))
    original = copy.deepcopy(model)
    accelerate(model)
    with sdpa_kernel(SDPBackend.MATH):  # of class attention: others have no second derivative
        wanted = derivatives(loss_of(original), *inputs)
        for transform in (derivatives, *TRANSFORMS):
            assert_equal(transform(loss_of(model), *inputs), wanted)


@pytest.mark.parametrize('patch_size, tokens', SIZES)
def test_gradients_of_each_image_and_jacobians(patch_size, tokens):
    model = small_model(patch_size).eval()
    params, image, _ = inputs_of(model, SIZES[patch_size, tokens])
    loss, plain = loss_of(model), loss_of(with_called_layers(model))
    each = vmap(grad(loss), (None, 0))(params, image[:, None])
    for i, single in enumerate(image[:, None]):
        wanted = grad(plain)(params, single)
        assert_equal(dict(gradient={k: g[i] for k, g in each.items()}), dict(gradient=wanted))

    def maps_of(temperature: Tensor) -> Tensor:
        maps = functional_call(model, {name: temperature}, (image,))
        return torch.stack([y.square().mean() for y in maps])

    name = 'blocks.1.attn.temperature'
    leaf = params[name].clone().requires_grad_()
    rows = [torch.autograd.grad(y, leaf, retain_graph=True)[0] for y in maps_of(leaf)[1:]]
    for jacobian in (jacrev, jacfwd):
        assert relative_error(jacobian(maps_of)(params[name])[1:], torch.stack(rows)) <= TOLERANCE


def test_vmap_draws_the_drop_path_of_each_image_or_of_all():
    model = small_model(16, drop_path_rate=0.5)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # vmap cannot update its running statistics
            module.eval()
    images = torch.randn(1, 3, 64, 64, dtype=torch.float64).expand(8, -1, -1, -1)
    for randomness, is_same in (('different', False), ('same', True)):
        *_, last = vmap(lambda x: model(x[None]), randomness=randomness)(images)
        assert all(torch.equal(last[0], y) for y in last) == is_same


@pytest.mark.parametrize('with_cp', [False, True])
def test_transforms_of_the_backward_pass_alone(with_cp):
    model = small_model(8, with_cp=with_cp).eval()
    image = torch.randn(SIZES[8, 'many'], dtype=torch.float64, requires_grad=True)
    y = model(image)[-1]
    cotangents = torch.randn(2, *y.shape, dtype=torch.float64)

    def pullback(cotangent: Tensor) -> Tensor:
        return torch.autograd.grad(y, image, cotangent, retain_graph=True)[0]

    expected = torch.stack([pullback(c) for c in cotangents])
    assert relative_error(vmap(pullback)(cotangents), expected) <= TOLERANCE
    with forward_ad.dual_level():
        dual = pullback(forward_ad.make_dual(*cotangents))
        assert relative_error(forward_ad.unpack_dual(dual).tangent, expected[1]) <= TOLERANCE


def checkpointed(loss: Loss) -> Loss:
    return lambda params, image: checkpoint(loss, params, image, use_reentrant=False)


def test_second_derivatives_of_a_backbone_that_is_checkpointed_or_saved_elsewhere():
    model = small_model(8, with_cp=True).train()
    inputs = inputs_of(model, SIZES[8, 'many'])
    loss, wanted = loss_of(model), derivatives(loss_of(with_called_layers(model)), *inputs)
    assert_equal(derivatives(checkpointed(loss), *inputs), wanted)
    with torch.autograd.graph.save_on_cpu():
        assert_equal(derivatives(loss, *inputs), wanted)
