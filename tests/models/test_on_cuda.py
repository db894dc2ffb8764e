"""What XCiT does on CUDA, on PyTorch's fake tensors: devices, dtypes and shapes, without a GPU."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from xcit_mm.models import XCiT


@pytest.fixture
def default_dtype(request):
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    'default_dtype', [torch.float32, torch.float16, torch.bfloat16], indirect=True
)
@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('size', [64, 512])  # the direct form, the Gram form
def test_the_backbone_on_cuda(monkeypatch, size, training, default_dtype):
    monkeypatch.setattr('xcit_mm.models.xcit._init_linear', lambda module: None)  # reads values
    with FakeTensorMode(), torch.device('cuda'), torch.set_grad_enabled(training):
        model = XCiT('n12', 16).train(training)
        maps = model(torch.randn(2, 3, size, size))
    assert all(m.requires_grad == training for m in maps)
    assert [tuple(m.shape) for m in maps] == [
        (2, 128, size // s, size // s) for s in (4, 8, 16, 32)
    ]
    assert {m.device.type for m in maps} == {'cuda'}
    assert {m.dtype for m in maps} == {default_dtype}
