"""timm's classifier from a checkpoint: the authors' outputs, or an error that says why not."""

import sys

import pytest
import timm
import torch
from helpers import randomize, relative_error
from safetensors.torch import save_file

from xcit_mm import UserError, XCiT
from xcit_mm.classification.loading import build_classifier, load_classifier
from xcit_mm.models.layers import XCA
from xcit_mm.weights.states import architecture


def weights(archive) -> dict[str, torch.Tensor]:
    return {k.removeprefix('state/'): v for k, v in archive.items() if k.startswith('state/')}


@torch.inference_mode()
@pytest.mark.parametrize('name', ['classifier_p16', 'classifier_p8_cls_norm'])
def test_features_and_logits_equal_those_of_the_authors(name, golden, tmp_path):
    archive = golden(name)
    torch.save({'model': weights(archive)}, tmp_path / 'release.pth')
    model = load_classifier(tmp_path / 'release.pth')
    for block in model.cls_attn_blocks:  # N12's variant, which the weights do not determine
        block.tokens_norm = bool(archive['tokens_norm'])
    assert sum(isinstance(m, XCA) for m in model.modules()) == 3  # the attention of xcit_mm
    features = model.forward_features(archive['input'])[:, 0]
    assert relative_error(features, archive['features']) < 1e-5
    assert relative_error(model(archive['input']), archive['logits']) < 1e-5


@torch.inference_mode()
# Only N12 normalizes the class token alone, which the weights do not determine.
@pytest.mark.parametrize(
    'name, suffix', [('xcit_nano_12_p16_224', '.pth'), ('xcit_tiny_12_p8_224', '.safetensors')]
)
def test_a_file_of_timm_gives_the_outputs_of_timm(name, suffix, tmp_path):
    expected, path = timm.create_model(name).eval(), tmp_path / f'model{suffix}'
    randomize(expected)
    (torch.save if suffix == '.pth' else save_file)(expected.state_dict(), path)
    image = torch.randn(1, 3, 80, 56)
    assert relative_error(load_classifier(path)(image), expected(image)) < 1e-5


@pytest.mark.parametrize('arch, patch_size', [('n12', 16), ('s12', 8), ('m24', 16)])
def test_shapes_determine_the_architecture(arch, patch_size):
    with torch.device('meta'):
        state = XCiT(arch, patch_size).state_dict()
    result = architecture(state, 'file.pth')
    assert (result.arch, result.patch_size) == (arch, patch_size)
    assert str(result) == f'XCiT-{arch.upper()}/{patch_size}'
    custom = result._replace(embed_dim=32)
    assert custom.arch is None
    assert 'layers, 32 channels' in str(custom)


# Edits of a state dict.
def without(*starts):
    return lambda state: {k: v for k, v in state.items() if not k.startswith(starts)}


def replaced(name, tensor):
    return lambda state: state | {name: tensor}


def as_detector(state):
    model = without('cls_', 'norm.', 'head.')(state)
    return {f'backbone.{k}': v for k, v in model.items()} | {'rpn_head.weight': torch.zeros(1)}


@pytest.mark.parametrize(
    'edit, message',
    [
        (as_detector, 'is not a classifier but a backbone, detector or segmentor'),
        (without('head.'), 'has no classification head, like every DINO model'),
        (without('cls_attn_blocks.1.norm2'), r'2 tensors differ.*cls_attn_blocks\.1\.norm2'),
        (without('blocks.'), r'holds no XCiT \(cls_token'),
        (replaced('head.weight', torch.zeros(())), r'head\.weight \(\)'),
        (
            replaced('head.weight', torch.full((10, 32), torch.nan)),
            r'infinite numbers or NaN in head\.weight',
        ),
        (replaced('another', torch.zeros(2)), r'another \(2,\)'),
        (replaced('cls_attn_blocks.0.attn.qkv.weight', torch.zeros(())), 'damaged class-attention'),
        (without('cls_attn_blocks.1.attn.qkv'), 'damaged class-attention'),
    ],
)
def test_other_weights_are_refused(golden, tmp_path, edit, message):
    path = tmp_path / 'release.pth'
    torch.save({'model': edit(weights(golden('classifier_p16')))}, path)
    with pytest.raises(UserError, match=message) as caught:
        load_classifier(path)
    assert str(path) in str(caught.value)


def test_missing_timm_is_named(golden, monkeypatch):
    monkeypatch.setitem(sys.modules, 'timm', None)
    with pytest.raises(UserError, match='pip install timm'):
        build_classifier(weights(golden('classifier_p16')), 'release.pth')
