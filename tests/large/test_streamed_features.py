"""Streaming an image gives the features of the whole image."""

import pytest
import torch
from helpers import randomize, relative_error
from helpers.small_xcit import SMALL

from xcit_mm.large.tokens.streamed_features import StreamedFeatures
from xcit_mm.network.models.image_xcit import ImageXCiT
from xcit_mm.network.tokens import map_to_tokens


@pytest.mark.parametrize('dtype, tolerance', [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize(
    'patch, size, rows', [(16, (83, 141), 2), (8, (59, 37), 3), (16, (5, 9), 1)]
)
def test_tiles_give_the_features_of_the_whole_image(patch, size, rows, dtype, tolerance):
    torch.manual_seed(0)
    model = ImageXCiT(SMALL, patch)
    randomize(model)
    model.eval().to(dtype)
    image = torch.randn(3, *size, dtype=dtype)
    with torch.inference_mode():
        token, maps = model.features(image[None])
    streamed = StreamedFeatures(model, image, rows)
    tiles = list(streamed.tokens())
    assert len(tiles) == -(-maps.shape[2] // rows)
    assert relative_error(torch.cat(tiles), map_to_tokens(maps)[0]) <= tolerance
    assert relative_error(streamed.token(), token[0]) <= tolerance


def test_large_logits_do_not_overflow():
    torch.manual_seed(0)
    model = ImageXCiT(SMALL, 16)
    randomize(model)
    model.eval()
    for block in model.cls_attn_blocks:
        block.attn.qkv.weight.data *= 40  # logits in the thousands
    image = torch.randn(3, 70, 50)
    with torch.inference_mode():
        expected = model.features(image[None]).token[0]
    token = StreamedFeatures(model, image, 1).token()
    assert token.isfinite().all()
    assert relative_error(token, expected) <= 1e-3
