import pytest
import torch
import torchvision
from torch import nn

from xcit_mm.network.waits import counted


def test_operators_are_counted_without_views():
    x = torch.ones(3, 4, requires_grad=True)
    with counted() as operations:
        (x.view(12)[2:] * 2).sum().backward()
    assert operations.started['mul'] == 2  # forward and backward
    assert 'view' not in operations.started and not operations.waits


@pytest.mark.parametrize(
    'wait',
    [
        lambda x: x.sum().item(),
        lambda x: float(x[0]),
        lambda x: int(x.argmax()),
        lambda x: bool((x > 0).all()),
        lambda x: [x for _ in range(x.argmin())],
        lambda x: x.nonzero(),
        lambda x: torch.where(x > 0),
        lambda x: x[x > 0],
        lambda x: x.clone().__setitem__(x > 0, torch.tensor([1.0, 2.0])),
        lambda x: x.masked_select(x > 0),
        lambda x: x.unique(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.numpy(),
        lambda x: x.repeat_interleave(torch.tensor([1, 2, 3])),
        lambda x: torch.equal(x, x),
        lambda x: torch.bincount(x.int()),
        lambda x: torchvision.ops.nms(x.expand(4, 3).T.contiguous(), x, 0.5),
    ],
)
def test_waits_are_counted(wait):
    x = torch.tensor([1.0, 0.0, 2.0])
    with counted() as operations:
        wait(x)
    assert operations.waits.total() >= 1


def test_tensors_of_the_cpu_are_read_without_a_wait_beside_a_gpu():
    x = torch.tensor([1.0, 0.0, 2.0])
    with counted(on_gpu=True) as operations:
        x.sum().item(), x.nonzero(), x.tolist(), x[x > 0]
    assert not operations.waits


def test_what_stays_on_the_device_does_not_wait():
    x = torch.rand(8, 4)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Dropout())
    with counted() as operations:
        y = model(x).masked_fill(x > 0, 0)
        y.index_select(0, y.sum(1).topk(3).indices)[torch.tensor([0, 2])].sum().backward()
        x[torch.arange(2)] = torch.where(x[:2] > 0, x[:2], 0)
        x[x > 2] = 0.0
        x.to(torch.float64).clamp_(max=1)
    assert not operations.waits


def test_a_wait_can_be_refused():
    def refuse(name):
        raise LookupError(name)

    with pytest.raises(LookupError, match='_local_scalar_dense'), counted(refuse):
        torch.ones(1).item()
