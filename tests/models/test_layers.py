"""XCA by itself: against timm's layer, and its arguments; drop path."""

import pytest
import torch
from helpers import randomize, relative_error
from timm.models.xcit import XCA as TimmXCA
from torchvision.ops import stochastic_depth

from xcit_mm.models.layers import XCA, DropPath


@pytest.mark.parametrize('qkv_bias', [True, False])
@pytest.mark.parametrize('num_tokens', [1, 7, 49, 300])
def test_xca_equals_timm(num_tokens, qkv_bias):
    reference = TimmXCA(64, num_heads=4, qkv_bias=qkv_bias)
    randomize(reference)
    layer = XCA(64, num_heads=4, qkv_bias=qkv_bias)
    layer.load_state_dict(reference.state_dict())
    x = torch.randn(2, num_tokens, 64, requires_grad=True)
    cotangent = torch.randn_like(x)
    value, wanted = layer(x), reference(x)
    assert relative_error(value, wanted) <= 1e-5
    gradients = torch.autograd.grad(value, [x, *layer.parameters()], cotangent)
    expected = torch.autograd.grad(wanted, [x, *reference.parameters()], cotangent)
    for gradient, other in zip(gradients, expected, strict=True):
        # One token has only its sign left after the normalisation: no gradient reaches q and k.
        assert (gradient - other).norm() <= 1e-5 * max(other.norm().item(), 1e-3)


def test_xca_drops_attention_and_output_in_training_only():
    x = torch.randn(2, 20, 32)
    for rates in (dict(attn_drop=0.5), dict(proj_drop=0.5)):
        layer = XCA(32, 4, **rates)
        assert not torch.equal(layer(x), layer(x))
        layer.eval()
        assert torch.equal(layer(x), layer(x))


def test_xca_refuses_heads_that_do_not_divide_the_channels():
    with pytest.raises(ValueError, match=r'dim=30.*num_heads=4'):
        XCA(30, 4)


def test_drop_path_draws_what_torchvision_draws():
    x = torch.randn(16, 3, 8)
    with torch.random.fork_rng():
        expected = stochastic_depth(x, p=0.3, mode='row')
    assert torch.equal(DropPath(0.3)(x), expected)
    assert DropPath(0.3).eval()(x) is x
