"""Recomputation in the backward pass: repeated, and after a failure."""

import copy

import pytest
import torch
from helpers import assert_same_gradients, randomize
from helpers.small_xcit import small_xcit
from torch import Tensor, nn

from xcit_mm.models import convolutions, layers, xcit
from xcit_mm.ops.recompute import recompute

TOLERANCE = 1e-5


@pytest.fixture(params=[False, True], ids=['', 'with_cp'])
def model(request) -> nn.Module:
    model = small_xcit(with_cp=request.param, drop_path_rate=0.0)
    randomize(model)
    return model


@pytest.fixture
def image() -> Tensor:
    return torch.randn(2, 3, 64, 96)


@pytest.fixture
def reference(model, image, monkeypatch) -> tuple[list[list[Tensor]], dict[str, Tensor]]:
    """The gradients of each output and the buffers after the forward pass, nothing recomputed."""
    twin = copy.deepcopy(model)
    twin.with_cp = False
    for module in (convolutions, layers, xcit):
        monkeypatch.setattr(module, 'recompute', lambda function, *args, **kwargs: function(*args))
    gradients = gradients_of_each(twin, twin(image))
    monkeypatch.undo()
    return gradients, dict(twin.named_buffers())


def gradients_of_each(model: nn.Module, outputs: tuple[Tensor, ...]) -> list[list[Tensor]]:
    params = list(model.parameters())
    return [
        torch.autograd.grad(
            y.square().sum(), params, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for y in outputs
    ]


def assert_gradients_and_buffers(
    model: nn.Module, expected: list[Tensor], buffers: dict[str, Tensor]
) -> None:
    names, params = zip(*model.named_parameters(), strict=True)
    assert_same_gradients(names, [p.grad for p in params], expected, TOLERANCE)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name


def test_each_output_has_its_own_backward_pass(model, image, reference):
    names = [name for name, _ in model.named_parameters()]
    for gradients, wanted in zip(gradients_of_each(model, model(image)), reference[0], strict=True):
        assert_same_gradients(names, gradients, wanted, TOLERANCE)


def test_a_second_backward_pass_adds_the_same_gradients(model, image, reference):
    expected, buffers = reference
    loss = sum(y.square().sum() for y in model(image))
    loss.backward(retain_graph=True)
    loss.backward()
    twice = [2 * sum(each) for each in zip(*expected, strict=True)]
    assert_gradients_and_buffers(model, twice, buffers)


def test_an_exception_in_the_backward_pass_leaves_the_statistics(model, image, reference):
    """The graph is kept: when the failure is mended, the same backward pass succeeds."""
    expected, buffers = reference
    loss = sum(y.square().sum() for y in model(image))
    norm = model.blocks[1].local_mp.bn
    failing = norm.register_forward_hook(fail)  # called when the layer is recomputed
    with pytest.raises(RuntimeError, match='out of memory'):
        loss.backward(retain_graph=True)
    failing.remove()
    assert all(m.momentum == 0.1 for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    model.zero_grad()
    loss.backward()
    assert_gradients_and_buffers(model, [sum(g) for g in zip(*expected, strict=True)], buffers)


def fail(*args: object) -> None:
    raise RuntimeError('out of memory')


def test_random_numbers_are_the_same_in_every_pass():
    x = torch.randn(50, 8, requires_grad=True)
    layer = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8))
    y = recompute(layer, x, within=layer, random=True)
    first, second = (torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
