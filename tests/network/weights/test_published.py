"""The published figures belong to the released files, by their names and architectures."""

import pytest

from xcit_mm.network.weights.published import (
    DINO,
    RETRIEVAL,
    TOP1,
    name_in_release,
    training_size,
)


@pytest.mark.parametrize(
    ('path', 'model', 'name'),
    [
        ('dir/xcit_small_12_p16_224_dist.pth', 'S12/16', 'xcit_small_12_p16_224_dist'),
        ('https://host/xcit/xcit_large_24_p8_224.pth', 'L24/8', 'xcit_large_24_p8_224'),
        ('timm://xcit_tiny_24_p8_384.fb_dist_in1k', 'T24/8', 'xcit_tiny_24_p8_384_dist'),
        ('xcit_small_12_cp16_dino.pth', 'S12/16', 'xcit_small_12_p16_dino'),
        ('dino_xcit_medium_24_p16_pretrain.pth', 'M24/16', 'xcit_medium_24_p16_dino'),
        ('xcit_small_12_p16_224_dist.pth', 'S12/8', None),  # other weights
        ('xcit_small_12_p8_512.pth', 'S12/8', None),
    ],
)
def test_a_name_and_the_weights_determine_the_released_model(path, model, name):
    assert name_in_release(path, f'XCiT-{model}') == name
    assert training_size(name) == (384 if name and '384' in name else 224)


def test_the_tables_are_those_of_the_paper():
    assert len(TOP1) == 42 and TOP1['xcit_large_24_p8_384_dist'] == 86.0
    assert DINO['xcit_medium_24_p8_dino'] == (80.3, 77.9)
    assert {name for name, *_ in RETRIEVAL} <= TOP1.keys() | DINO.keys()
    assert RETRIEVAL['xcit_small_12_p8_384_dist', 'asmk', 65536, 768][2] == 92.3
