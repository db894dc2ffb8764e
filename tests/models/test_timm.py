"""The fast attention in timm's XCiT."""

import pytest
import timm
import torch
from helpers import assert_same_gradients, randomize, relative_error

from xcit_mm import accelerate
from xcit_mm.models.layers import XCA


def timm_xcit() -> torch.nn.Module:
    model = timm.create_model('xcit_nano_12_p16_224')
    randomize(model)
    return model.eval()


@pytest.mark.parametrize('size', [64, 352])  # 16 tokens: direct form; 484: Gram form
def test_outputs_and_gradients_stay(size):
    model, image = timm_xcit(), torch.randn(2, 3, size, size)
    names, params = zip(*model.named_parameters(), strict=True)
    before = model(image)
    expected = torch.autograd.grad(before.square().sum(), params)
    after = accelerate(model)(image)
    assert sum(isinstance(m, XCA) for m in model.modules()) == 12
    assert relative_error(after, before) <= 1e-5
    gradients = torch.autograd.grad(after.square().sum(), params)
    assert_same_gradients(names, gradients, expected, 2e-5)


def test_parameters_stay():
    model = timm_xcit().train()
    before = list(model.named_parameters())
    assert accelerate(model) is model
    for (name, parameter), (old_name, old) in zip(model.named_parameters(), before, strict=True):
        assert name == old_name and parameter is old


def test_a_model_without_its_attention_is_refused():
    with pytest.raises(ValueError, match=r"no attention of timm's XCiT in Linear"):
        accelerate(torch.nn.Linear(2, 2))
