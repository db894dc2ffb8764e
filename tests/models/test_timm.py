"""The fast attention in timm's XCiT."""

import pytest
import timm
import torch
from helpers import assert_same_gradients, randomize, relative_error
from timm.models.xcit import XCA as TimmXCA

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


@pytest.mark.parametrize('qkv_bias', [True, False])
@pytest.mark.parametrize('num_tokens', [1, 7, 49, 300])
def test_the_attention_equals_timms(num_tokens, qkv_bias):
    reference = torch.nn.Sequential(TimmXCA(64, num_heads=4, qkv_bias=qkv_bias))
    randomize(reference)
    params = list(reference.parameters())
    x = torch.randn(2, num_tokens, 64, requires_grad=True)
    cotangent = torch.randn_like(x)
    expected = reference(x)
    expected_gradients = torch.autograd.grad(expected, [x, *params], cotangent)
    value = accelerate(reference)(x)
    assert isinstance(reference[0], XCA)
    assert relative_error(value, expected) <= 1e-5
    gradients = torch.autograd.grad(value, [x, *params], cotangent)
    for gradient, wanted in zip(gradients, expected_gradients, strict=True):
        # One token has only its sign left after the normalisation: no gradient reaches q and k.
        assert (gradient - wanted).norm() <= 1e-5 * max(wanted.norm().item(), 1e-3)


def test_parameters_names_and_random_numbers_stay():
    model = timm_xcit().train()
    before = list(model.named_parameters())
    state = torch.get_rng_state()
    assert accelerate(model) is model
    assert torch.equal(torch.get_rng_state(), state)
    for (name, parameter), (old_name, old) in zip(model.named_parameters(), before, strict=True):
        assert name == old_name
        assert parameter is old
    assert all(m.training for m in model.modules())


def test_a_model_without_its_attention_is_refused():
    with pytest.raises(ValueError, match=r"no attention of timm's XCiT in Linear"):
        accelerate(torch.nn.Linear(2, 2))
