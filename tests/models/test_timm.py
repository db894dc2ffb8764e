"""The fast attention in timm's XCiT."""

import pytest
import timm
import torch
from helpers import assert_same_gradients, randomize, relative_error

from xcit_mm import accelerate
from xcit_mm.models.layers import XCA


@pytest.mark.parametrize('size', [64, 352])  # 16 tokens: direct form; 484: Gram form
def test_outputs_gradients_and_parameters_stay(size):
    model, image = timm.create_model('xcit_nano_12_p16_224').eval(), torch.randn(2, 3, size, size)
    randomize(model)
    names, params = zip(*model.named_parameters(), strict=True)
    before = model(image)
    expected = torch.autograd.grad(before.square().sum(), params)
    assert accelerate(model) is model
    assert sum(isinstance(m, XCA) for m in model.modules()) == 12
    after = model(image)
    assert relative_error(after, before) <= 1e-5
    gradients = torch.autograd.grad(after.square().sum(), params)
    assert_same_gradients(names, gradients, expected, 2e-5)
    for (name, parameter), old_name, old in zip(
        model.named_parameters(), names, params, strict=True
    ):
        assert name == old_name and parameter is old


@pytest.mark.parametrize('rate', ['attn_drop_rate', 'proj_drop_rate'])
def test_a_model_without_its_attention_or_with_dropout_is_refused(rate):
    with torch.device('meta'):
        dropping = timm.create_model('xcit_nano_12_p16_224', **{rate: 0.1})
    for model in (dropping, torch.nn.Linear(2, 2)):
        with pytest.raises(ValueError, match=r"no attention of timm's XCiT without dropout in"):
            accelerate(model)
