"""timm's classifier from a checkpoint: the authors' outputs, or an error that says why not."""

import sys

import pytest
import timm
import torch
from helpers import randomize, relative_error
from safetensors.torch import save_file
from torch import nn

from xcit_mm import UserError, XCiT
from xcit_mm.classification import load_classifier
from xcit_mm.models.layers import XCA
from xcit_mm.weights.architecture import Architecture, architecture

GOLDEN = ['classifier_p16', 'classifier_p8_cls_norm']


def weights(archive) -> dict[str, torch.Tensor]:
    return {k.removeprefix('state/'): v for k, v in archive.items() if k.startswith('state/')}


@pytest.fixture
def release(golden, tmp_path):
    """A file as the authors release it, of 10 classes and 32 channels; changed by a function."""

    def write(change=lambda state: state):
        path = tmp_path / 'release.pth'
        torch.save({'model': change(weights(golden('classifier_p16')))}, path)
        return path

    return write


def timm_xcit(name: str) -> nn.Module:
    model = timm.create_model(name)
    randomize(model)
    return model.eval()


@torch.inference_mode()
@pytest.mark.parametrize('name', GOLDEN)
def test_features_and_logits_are_those_of_the_authors(name, golden, tmp_path):
    archive = golden(name)
    torch.save({'model': weights(archive)}, tmp_path / 'release.pth')
    model = load_classifier(tmp_path / 'release.pth', tokens_norm=bool(archive['tokens_norm']))
    assert sum(isinstance(m, XCA) for m in model.modules()) == 3  # our attention
    features = model.forward_features(archive['input'])[:, 0]
    assert relative_error(features, archive['features']) < 1e-5
    assert relative_error(model(archive['input']), archive['logits']) < 1e-5


@torch.inference_mode()
# N12 normalises the class token alone, all others every token: the weights do not tell.
@pytest.mark.parametrize(
    'name, suffix', [('xcit_nano_12_p16_224', '.pth'), ('xcit_tiny_12_p8_224', '.safetensors')]
)
def test_a_file_of_timm_gives_the_outputs_of_timm(name, suffix, tmp_path):
    theirs, path = timm_xcit(name), tmp_path / f'model{suffix}'
    (torch.save if suffix == '.pth' else save_file)(theirs.state_dict(), path)
    image = torch.randn(1, 3, 80, 56)
    assert relative_error(load_classifier(path)(image), theirs(image)) < 1e-5


@torch.inference_mode()
def test_weights_in_float16_are_computed_with_in_float32(release, golden):
    path = release(
        lambda state: {k: v.half() if v.is_floating_point() else v for k, v in state.items()}
    )
    archive = golden('classifier_p16')
    logits = load_classifier(path)(archive['input'])
    assert logits.dtype == torch.float32
    assert relative_error(logits, archive['logits']) < 1e-2


@pytest.mark.parametrize('arch', ['n12', 's12', 'm24'])
@pytest.mark.parametrize('patch_size', [8, 16])
def test_the_architecture_is_told_by_the_shapes(arch, patch_size):
    with torch.device('meta'):
        state = XCiT(arch, patch_size).state_dict()
    found = architecture(state, 'file.pth')
    assert (found.arch, found.patch_size) == (arch, patch_size)
    assert str(found) == f'XCiT-{arch.upper()}/{patch_size}'


def test_an_unpublished_architecture_is_described():
    assert Architecture(32, 3, 4, 16).arch is None
    assert str(Architecture(32, 3, 4, 16)) == (
        'an XCiT of 3 layers, 32 channels, 4 heads and patch size 16'
    )


def without(*starts):
    return lambda state: {k: v for k, v in state.items() if not k.startswith(starts)}


def replaced(**tensors):
    return lambda state: state | {k.replace('__', '.'): v for k, v in tensors.items()}


def as_detector(state):
    model = without('cls_', 'norm.', 'head.')(state)
    return {f'backbone.{k}': v for k, v in model.items()} | {'rpn_head.weight': torch.zeros(1)}


@pytest.mark.parametrize(
    'change, message',
    [
        (as_detector, 'holds no classifier: it is a detector or segmentor'),
        (without('cls_', 'norm.', 'head.'), 'no classifier: it has no class-attention layers'),
        (without('head.'), r'has no head to name classes with \(a DINO model has none\)'),
        (without('head.bias'), r'1 tensors differ.*head\.bias \(10,\)'),
        (without('cls_attn_blocks.1.norm2'), r'2 tensors differ.*cls_attn_blocks\.1\.norm2'),
        (without('blocks.'), 'holds no XCiT of patch size 8 or 16'),
        (without('patch_embed.proj.6'), r'tensors differ.*patch size 8 \(.*patch_embed'),
        (without('patch_embed.proj.2', 'patch_embed.proj.4'), 'no XCiT of patch size 8 or 16'),
        (replaced(head__weight=torch.zeros(())), r'head\.weight \(\)'),
        (replaced(head__weight=torch.zeros(10, 32, dtype=torch.int64)), r'torch\.int64'),
        (replaced(head__weight=torch.full((10, 32), torch.nan)), r'NaN in head\.weight'),
        (replaced(another=torch.zeros(2)), r'another \(2,\)'),
        (
            replaced(cls_attn_blocks__0__attn__qkv__weight=torch.zeros(())),
            r'cls_attn_blocks\.0\.attn\.qkv\.weight \(\)',
        ),
        (
            replaced(cls_attn_blocks__0__attn__qkv__weight=torch.zeros(2, 32)),
            r'cls_attn_blocks\.0\.attn\.q\.weight \(1, 32\)',
        ),
    ],
)
def test_what_is_not_just_a_classifier_is_refused(release, change, message):
    path = release(change)
    with pytest.raises(UserError, match=message) as caught:
        load_classifier(path)
    assert str(path) in str(caught.value)


def test_missing_timm_is_named(release, monkeypatch):
    monkeypatch.setitem(sys.modules, 'timm', None)
    with pytest.raises(UserError, match='pip install timm'):
        load_classifier(release())
