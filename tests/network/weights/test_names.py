"""The layouts of other releases: every tensor is loaded, or nothing and the error says why."""

import argparse
import zlib
from ast import literal_eval

import numpy as np
import pytest
import torch
from helpers import DATA, randomize, relative_error
from safetensors.torch import save_file
from timm.models.xcit import Xcit
from torch import Tensor, nn

from xcit_mm import UserError, XCiT
from xcit_mm.apps.convert.conversion import convert
from xcit_mm.network.weights.image_network import load_image_network
from xcit_mm.network.weights.names import (
    architecture,
    detector_state,
    model_state,
    require_same_tensors,
)
from xcit_mm.network.weights.timm_classifier import load_classifier


@pytest.fixture(scope='module')
def source() -> XCiT:
    model = XCiT('n12', 16)
    randomize(model)
    return model


def starting_from(path, arch='n12', patch_size=16, **kwargs) -> XCiT:
    return XCiT(arch, patch_size, init_cfg=dict(type='Pretrained', checkpoint=path), **kwargs)


def trunk(model: XCiT) -> dict[str, Tensor]:
    return {k: v for k, v in model.state_dict().items() if not k.startswith('fpn')}


def classifier() -> dict[str, Tensor]:
    """The tensors of a released classifier beside the trunk."""
    return {
        'cls_token': torch.zeros(1, 1, 128),
        'cls_attn_blocks.0.attn.qkv.weight': torch.zeros(384, 128),
        'cls_attn_blocks.0.gamma1': torch.zeros(128),
        'norm.weight': torch.ones(128),
        'head.weight': torch.zeros(1000, 128),
    }


def prefixed(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in state.items()}


def layouts(model: XCiT) -> dict[str, dict]:
    """The files in which a model is published, all but the last two without its pyramid."""
    released = trunk(model) | classifier()
    dino = {k: v for k, v in released.items() if not k.startswith('head')}
    head = {'head.mlp.0.weight': torch.zeros(2), 'head.last_layer.weight_g': torch.zeros(2)}
    student = {k: v + 1 for k, v in dino.items()}  # differs from the teacher
    return {
        'imagenet': {'model': released, 'args': argparse.Namespace(lr=1)},
        'dino': dino,
        'dino training': {
            'student': prefixed(prefixed(student, 'backbone.') | head, 'module.'),
            'teacher': prefixed(dino, 'backbone.') | head,
            'optimizer': {'state': {}},
            'args': argparse.Namespace(arch='xcit'),
        },
        'dino student': {'student': prefixed(dino, 'module.backbone.')},
        'timm': {k.replace('pos_embeder.', 'pos_embed.'): v for k, v in released.items()},
        'robust': {
            'normalize.mean': torch.zeros(1, 3, 1, 1),
            'normalize.std': torch.ones(1, 3, 1, 1),
            **prefixed(released, 'model.'),
        },
        'mmdet 2': {
            'meta': {'mmdet_version': '2.11.0', 'CLASSES': ('person',), 'epoch': 36, 'lr': [1e-4]},
            'state_dict': prefixed(model.state_dict(), 'backbone.')
            | {'rpn_head.rpn_conv.weight': torch.zeros(3)},
            'optimizer': {'state': {0: {'step': 1, 'exp_avg': torch.zeros(3)}}, 'param_groups': []},
        },
        'whole backbone': model.state_dict(),
    }


LAYOUTS = ('imagenet', 'dino', 'dino training', 'dino student', 'timm', 'robust')
LAYOUTS += 'mmdet 2', 'whole backbone'
WITH_PYRAMID = LAYOUTS[-2:]


def assert_same(a: dict, b: dict) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize('layout', LAYOUTS)
def test_every_layout_gives_the_maps_of_its_source(source, tmp_path, layout):
    torch.save(layouts(source)[layout], tmp_path / 'weights')  # the name has no ending
    loaded = starting_from(tmp_path / 'weights')
    loaded.init_weights()
    if layout not in WITH_PYRAMID:
        for level in ('fpn1', 'fpn2'):  # not in the file
            getattr(loaded, level).load_state_dict(getattr(source, level).state_dict())
        assert 'XCiT-N12/16' in convert(tmp_path / 'weights', tmp_path / 'converted.pth')
        assert_same(torch.load(tmp_path / 'converted.pth')['state_dict'], trunk(source))
    image = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        for a, b in zip(loaded.eval()(image), source.eval()(image), strict=True):
            assert relative_error(a, b) < 1e-5


def test_a_model_of_birder_computes_the_same_here(tmp_path):
    """The arrays were computed with birder 0.8.4 and the values of this function."""

    def values(name: str, shape: tuple[int, ...]) -> Tensor:
        state = np.random.RandomState(zlib.crc32(name.encode()))
        near_1 = len(shape) < 2 or 'temperature' in name
        spread = 0.5 if near_1 else 2 * np.prod(shape[1:]) ** -0.5
        return torch.tensor(state.uniform(-spread, spread, shape) + near_1, dtype=torch.float32)

    birder = dict(np.load(DATA / 'birder.npz'))
    shapes = {
        str(k): literal_eval(str(v)) for k, v in zip(birder['names'], birder['shapes'], strict=True)
    }
    state = {name: values(name, shape) for name, shape in shapes.items()}
    state = {k: v.long() if k.endswith('num_batches_tracked') else v for k, v in state.items()}
    images = {'mean': (0.5, 0.5, 0.6), 'std': (0.2, 0.2, 0.2)}
    torch.save(
        {'state': state, 'rgb_stats': images, 'task': 'image_classification'}, tmp_path / 'b'
    )
    image = torch.from_numpy(np.random.RandomState(0).randn(2, 3, 64, 96).astype('float32'))
    logits = torch.from_numpy(birder['logits'])
    with torch.no_grad():
        assert relative_error(load_classifier(tmp_path / 'b')(image), logits) < 1e-5
        network = load_image_network(tmp_path / 'b')
        token = network.model.features(image).token
        assert (
            relative_error(token @ state['classifier.weight'].mT, logits - state['classifier.bias'])
            < 1e-5
        )
        arch = dict(embed_dim=32, depth=12, num_heads=4, eta=1.0)
        backbone = starting_from(tmp_path / 'b', arch)
        backbone.init_weights()
        backbone.fpn2 = backbone.fpn4 = nn.Identity()
        _, stage2, _, stage4 = backbone.eval()(image)
    assert network.images['mean'] == pytest.approx([127.5, 127.5, 153])
    assert relative_error(stage2, torch.from_numpy(birder['stage2'])) < 1e-5
    assert relative_error(stage4, torch.from_numpy(birder['stage4'])) < 1e-5
    assert '12 layers, 32 channels' in convert(tmp_path / 'b', tmp_path / 'converted.pth')


@pytest.mark.parametrize('prefix', ['', 'model.'])
def test_a_robust_classifier_for_small_images_has_patches_of_4_pixels(tmp_path, prefix):
    """As robustbench builds it: an XCiT for 16, whose first two convolutions have stride 1."""
    arch = dict(embed_dim=32, depth=4, num_heads=4)
    reference = Xcit(patch_size=16, num_classes=10, tokens_norm=True, **arch).eval()
    for index in (0, 2):
        reference.patch_embed.proj[index][0].stride = 1, 1
    randomize(reference)
    path = tmp_path / 'xcit-s-cifar10-linf.pth.tar'
    torch.save(prefixed(reference.state_dict(), prefix), path)
    image = torch.randn(2, 3, 32, 44)
    with torch.no_grad():
        wanted = reference.forward_features(image)
        assert relative_error(load_classifier(path)(image), reference(image)) < 1e-5
        network = load_image_network(path)
        assert relative_error(network.model.features(image).token, wanted[:, 0]) < 1e-5
    assert network.shape.patch_size == 4
    # Our checkpoints say it, by any name.
    convert(path, tmp_path / 'own.pth')
    assert load_image_network(tmp_path / 'own.pth').shape.patch_size == 4
    path.rename(tmp_path / 'imagenet.pth')
    assert load_image_network(tmp_path / 'imagenet.pth').shape.patch_size == 16


@pytest.mark.parametrize('arch', ['m12', 'l12'])
def test_a_robust_backbone_is_named_by_its_weights(arch):
    with torch.device('meta'):
        state = XCiT(arch, 16).state_dict()
    assert str(architecture(state, 'xcit.pth')) == f'XCiT-{arch.upper()}/16'


def test_the_log_says_how_much_is_loaded_and_what_starts_at_random(source, tmp_path, log):
    save_file(layouts(source)['timm'], tmp_path / 'imagenet.pth')  # safetensors under any name
    loaded = starting_from(tmp_path / 'imagenet.pth', out_norm=True)
    loaded.init_weights()
    assert trunk(loaded)['blocks.11.gamma1'].equal(trunk(source)['blocks.11.gamma1'])
    output = '\n'.join(log)
    num_loaded, num_model = len(trunk(source)), len(source.state_dict()) + 8
    assert f'Loaded {num_loaded} of the {num_model} tensors of XCiT' in output
    assert 'initialized at random: fpn1.0, fpn1.1, fpn1.3, fpn2.0, out_norms.0' in output


@pytest.mark.parametrize(
    ('kwargs', 'changed', 'message'),
    [
        (
            dict(arch='t12'),
            {},
            r'XCiT-N12/16 \(patch_embed\.proj\.0\.0\.weight \(16, 3, 3, 3\), .*; the model has '
            r'XCiT-T12/16 \(patch_embed\.proj\.0\.0\.weight \(24, 3, 3, 3\)',
        ),
        (
            {},
            {'blocks.12.gamma1': torch.zeros(128)},
            r'1 tensors differ.*blocks\.12.gamma1 \(128,\)',
        ),
        ({}, {'blocks.11.gamma1': None}, r'1 tensors differ.*blocks\.11.gamma1 \(128,\)'),
    ],
)
def test_other_weights_are_refused_with_both_sides_and_nothing_is_loaded(
    source, tmp_path, kwargs, changed, message
):
    state = {k: v for k, v in (trunk(source) | changed).items() if v is not None}
    torch.save({'model': state}, tmp_path / 'n12_16.pth')
    model = starting_from(tmp_path / 'n12_16.pth', **kwargs)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(UserError, match=rf'n12_16\.pth does not hold .*{message}'):
        model.init_weights()
    assert_same(model.state_dict(), before)


def test_a_file_without_an_xcit_is_refused_with_both_sides(tmp_path):
    torch.save({'model': {'conv1.weight': torch.zeros(64, 3, 7, 7)}}, tmp_path / 'resnet.pth')
    message = r'the file has no XCiT \(conv1\.weight \(64, 3, 7, 7\)\); the model has XCiT-N12/16 '
    with pytest.raises(UserError, match=message):
        starting_from(tmp_path / 'resnet.pth').init_weights()
    with pytest.raises(UserError, match=r'holds no XCiT \(conv1\.weight \(64, 3, 7, 7\)\)'):
        convert(tmp_path / 'resnet.pth', tmp_path / 'new.pth')
    assert not (tmp_path / 'new.pth').exists()


@pytest.mark.parametrize('content', [[torch.zeros(2)], {'model': 'xcit'}, {'state_dict': {}}])
def test_a_file_without_weights_is_refused(content):
    with pytest.raises(UserError, match=r'file\.pth holds no state dict'):
        model_state(content, 'file.pth')


@pytest.mark.parametrize(
    'init_cfg', [dict(type='Pretrained'), [dict(type='Pretrained')], dict(checkpoint='a.pth')]
)
def test_an_init_cfg_that_would_load_nothing_is_refused(init_cfg):
    with pytest.raises(UserError, match='init_cfg'):
        XCiT('n12', 16, init_cfg=init_cfg).init_weights()


def test_a_converted_detector_is_whole_and_overwrites_nothing(source, tmp_path):
    torch.save(layouts(source)['mmdet 2'], tmp_path / 'source.pth')
    convert(tmp_path / 'source.pth', tmp_path / 'target.pth')
    state = layouts(source)['mmdet 2']['state_dict']
    assert_same(torch.load(tmp_path / 'target.pth')['state_dict'], state)
    assert_same(detector_state(state | prefixed(classifier(), 'backbone.')), state)
    with pytest.raises(UserError, match='already exists'):
        convert(tmp_path / 'source.pth', tmp_path / 'target.pth')
    with pytest.raises(UserError, match='cannot be written'):
        convert(tmp_path / 'source.pth', tmp_path / 'source.pth' / 'target.pth')
    assert {p.name for p in tmp_path.iterdir()} == {'source.pth', 'target.pth'}
    convert(tmp_path / 'source.pth', tmp_path / 'new' / 'target.pth')
    assert (tmp_path / 'new/target.pth').is_file()


@pytest.mark.parametrize(
    ('weight', 'message'),
    [
        (torch.ones(2, dtype=torch.int64), r'the file has .*a \(2,\) of torch\.int64.*; the model'),
        (torch.ones(2, dtype=torch.complex64), r'a \(2,\) of complex numbers'),
        (torch.tensor([1.0, float('nan')]), 'holds infinite numbers or NaN in a: use'),
        (torch.tensor([1.0, float('inf')], dtype=torch.float16), 'infinite numbers'),
    ],
)
def test_a_tensor_that_would_be_loaded_as_another_is_refused(weight, message):
    with pytest.raises(UserError, match=message):
        require_same_tensors({'a': weight}, {'a': torch.zeros(2)}, 'file.pth')


def test_floats_of_another_size_are_loaded():
    for dtype, large in ((torch.float16, 65504), (torch.bfloat16, 3e38), (torch.float64, 3e38)):
        weights = {'a': torch.full((9,), large, dtype=dtype)}  # their sum is infinite
        require_same_tensors(weights, {'a': torch.zeros(9)}, 'file.pth')
