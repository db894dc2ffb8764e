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
    options = dict(retain_graph=True, allow_unused=True, materialize_grads=True)
    return [torch.autograd.grad(y.square().sum(), params, **options) for y in outputs]


def test_every_backward_pass_gives_the_same_gradients_also_after_a_failure(model, image, reference):
    expected, buffers = reference
    names, params = zip(*model.named_parameters(), strict=True)
    outputs = model(image)
    for gradients, wanted in zip(gradients_of_each(model, outputs), expected, strict=True):
        assert_same_gradients(names, gradients, wanted, TOLERANCE)

    loss = sum(y.square().sum() for y in outputs)
    failing = model.blocks[1].local_mp.bn.register_forward_hook(fail)  # called when recomputed
    with pytest.raises(RuntimeError, match='out of memory'):
        loss.backward(retain_graph=True)
    failing.remove()
    assert all(m.momentum == 0.1 for m in model.modules() if isinstance(m, nn.BatchNorm2d))

    model.zero_grad()
    loss.backward(retain_graph=True)
    loss.backward()
    twice = [2 * sum(each) for each in zip(*expected, strict=True)]
    assert_same_gradients(names, [p.grad for p in params], twice, TOLERANCE)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name


def fail(*args: object) -> None:
    raise RuntimeError('out of memory')


def test_random_numbers_are_the_same_in_every_pass():
    x = torch.randn(50, 8, requires_grad=True)
    layer = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8))
    y = recompute(layer, x, within=layer, random=True)
    first, second = (torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
