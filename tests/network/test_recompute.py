"""Recomputation in the backward pass: repeated, and after a failure."""

import copy

import pytest
import torch
import torch.distributed as dist
from helpers import assert_same_gradients, randomize
from helpers.small_xcit import small_xcit
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from xcit_mm.network import xcit
from xcit_mm.network.fast import cpu
from xcit_mm.network.fast.recompute import recompute

TOLERANCE = 1e-5


def gradients_of_each(model: nn.Module, outputs: tuple[Tensor, ...]) -> list[list[Tensor]]:
    params = list(model.parameters())
    options = dict(retain_graph=True, allow_unused=True, materialize_grads=True)
    return [torch.autograd.grad(y.square().sum(), params, **options) for y in outputs]


@pytest.mark.parametrize('with_cp', [False, True])
def test_every_backward_pass_gives_the_same_gradients_also_after_a_failure(monkeypatch, with_cp):
    model, image = small_xcit(with_cp=with_cp, drop_path_rate=0.0), torch.randn(2, 3, 64, 96)
    randomize(model)
    reference = copy.deepcopy(model)
    with monkeypatch.context() as patch:  # nothing is recomputed
        for module in (cpu, xcit):
            patch.setattr(module, 'recompute', lambda function, *args, **_: function(*args))
        expected = gradients_of_each(reference, reference(image))

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
    for (name, buffer), wanted in zip(model.named_buffers(), reference.buffers(), strict=True):
        assert torch.equal(buffer, wanted), name


def fail(*args: object) -> None:
    raise RuntimeError('out of memory')


def test_random_numbers_are_the_same_in_every_pass():
    x = torch.randn(50, 8, requires_grad=True)
    layer = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8))
    y = recompute(layer, x, within=layer, random=True)
    first, second = (torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_blocks_whose_parameters_are_sharded_are_recomputed_with_the_gathered_ones():
    image = torch.randn(1, 3, 64, 64)
    model = small_xcit(with_cp=True, drop_path_rate=0.0).eval()
    sum(y.square().mean() for y in model(image)).backward()
    names, wanted = zip(*((n, p.grad) for n, p in model.named_parameters()), strict=True)
    model.zero_grad()
    dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)
    try:
        for module in (*model.blocks, model):
            fully_shard(module, mesh=dist.init_device_mesh('cpu', (1,)))
        sum(y.square().mean() for y in model(image)).backward()
        gradients = [p.grad.full_tensor() for p in model.parameters()]
    finally:
        dist.destroy_process_group()
    assert_same_gradients(names, gradients, wanted, TOLERANCE)
