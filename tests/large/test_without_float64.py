"""Streams on a device without float64, such as Apple's GPUs; the CPU stands in for it."""

import numpy as np
import pytest
import torch
from helpers import randomize, relative_error
from helpers.small_xcit import small_xcit
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from xcit_mm import stream, stream_backward
from xcit_mm.base.device import choose_device, widest_dtype
from xcit_mm.large.tokens import backward, passes
from xcit_mm.network.ops import moments

HAS_FLOAT64 = 'this device has no float64'


class WithoutFloat64(TorchDispatchMode):
    """Refuse every operator that returns a tensor in float64."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                raise TypeError(f'{HAS_FLOAT64}: {function}')
        return result


@pytest.fixture
def without_float64(monkeypatch):
    for module in (backward, moments, passes):
        monkeypatch.setattr(module, 'widest_dtype', lambda device: torch.float32)
    return WithoutFloat64


def test_maps_and_gradients_are_computed_without_float64(without_float64):
    torch.manual_seed(1)
    backbone = small_xcit(8, norm_eval=True)
    randomize(backbone)
    image = torch.randn(3, 97, 121)
    with pytest.raises(TypeError, match=HAS_FLOAT64), without_float64():
        image.double()
    maps = backbone(image[None])
    torch.autograd.backward(maps, [torch.ones_like(m) for m in maps])
    expected = {name: p.grad for name, p in backbone.named_parameters()}
    backbone.zero_grad()
    with without_float64():
        streamed = stream(backbone.eval(), image, rows=3)
    for value, reference in zip(streamed, maps, strict=True):
        assert relative_error(torch.from_numpy(np.array(value)), reference[0].detach()) < 1e-4
    with without_float64():
        stream_backward(backbone, image, [torch.ones_like(m[0]) for m in maps])
    for name, parameter in backbone.named_parameters():
        if expected[name] is not None and expected[name].norm() > 1e-3:
            assert relative_error(parameter.grad, expected[name]) < 1e-3, name


def test_apples_gpu_is_chosen_and_has_no_float64(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.setattr(torch.backends.mps, 'is_available', lambda: True)
    assert choose_device(None) == torch.device('mps')
    assert widest_dtype(torch.device('mps')) == torch.float32
    assert widest_dtype(torch.device('cpu')) == torch.float64
