"""Teachers return what their network computes of the images that the student gets."""

import pytest
import timm
import torch
from helpers.small_xcit import SMALL, small_xcit
from mmengine.registry import MODELS
from torch import nn
from torch.nn import functional as F

from xcit_mm import UserError
from xcit_mm.network.models import ImageXCiT
from xcit_mm.network.models.image_preprocessor import ImagePreprocessor
from xcit_mm.train.distillation.module_teacher import ModuleTeacher
from xcit_mm.train.distillation.timm_teacher import TimmTeacher

MEAN, STD = [100.0, 110.0, 120.0], [50.0, 60.0, 70.0]
PREPROCESSOR = ImagePreprocessor(MEAN, STD)
SWIN = dict(embed_dim=16, depths=(1, 1), num_heads=(1, 2), window_size=4)
XCIT = dict(type='ImageXCiT', arch=SMALL, patch_size=16)
SCALE = dict(mean=MEAN, std=STD)


@MODELS.register_module()
class Patches(nn.Module):
    """A module that returns its patches of 16 pixels, as tokens, after prefix tokens of zeros."""

    def __init__(self, num_prefix: int = 0, as_maps: bool = False) -> None:
        super().__init__()
        self.num_prefix, self.as_maps = num_prefix, as_maps
        self.conv = nn.Conv2d(3, 8, 16, 16)

    def forward(self, x):
        x = self.conv(x)
        if self.as_maps:
            return 2 * x, x
        return F.pad(x.flatten(2).transpose(1, 2), (0, 0, self.num_prefix, 0))


def normalized(images: torch.Tensor) -> torch.Tensor:
    return PREPROCESSOR(dict(inputs=[*images]))['inputs']


def pixels(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def save(path, network: nn.Module, prefix: str = '', **meta) -> str:
    state = {prefix + name: value for name, value in network.state_dict().items()}
    torch.save(dict(state_dict=state, meta=meta), path)
    return str(path)


def refusal(function, *args, **kwargs) -> str:
    with pytest.raises(UserError) as raised:
        function(*args, **kwargs)
    assert '\n' not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ('name', 'arguments', 'layout'),
    [
        ('test_resnet', {}, 'BCHW'),
        ('swin_tiny_patch4_window7_224', SWIN, 'BHWC'),
        ('test_vit', {}, 'BNC'),
        ('xcit_nano_12_p16_224', dict(embed_dim=32, depth=2), 'BNC'),
    ],
)
def test_features_and_logits_are_timms_for_images_with_its_normalization(
    name, arguments, layout, tmp_path
):
    torch.manual_seed(0)
    has_size = 'resnet' not in name
    network = timm.create_model(
        name, num_classes=7, **arguments, **(dict(img_size=64) if has_size else {})
    ).eval()
    path = save(tmp_path / 'weights.pth', network)
    teacher = TimmTeacher(name, path, size=64 if has_size else None, arguments=arguments)
    images = pixels(2, 3, 64, 64)
    cfg = network.pretrained_cfg
    mean, std = (torch.tensor(cfg[part]).view(-1, 1, 1) for part in ('mean', 'std'))
    x = (images / 255 - mean) / std
    with torch.no_grad():
        expected = network.forward_features(x)
        logits = network(x)
        vector = network.forward_head(expected, pre_logits=True)
    if layout == 'BNC':
        expected = expected[:, 1:].unflatten(1, (4, 4))
    expected = expected if layout == 'BCHW' else expected.permute(0, 3, 1, 2)
    found = teacher.features(normalized(images), PREPROCESSOR)
    close = dict(rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.map, expected, **close)
    torch.testing.assert_close(found.vector, vector, **close)
    torch.testing.assert_close(teacher.logits(normalized(images), PREPROCESSOR), logits, **close)
    assert (teacher.map_channels, teacher.vector_channels) == (expected.shape[1], vector.shape[1])
    assert not any(p.requires_grad for p in teacher.network.parameters())
    assert teacher.description.items() >= dict(name=name, weights=path).items()
    license_name = cfg.get('license')
    assert teacher.description['license'].startswith(license_name or 'unknown')


def test_weights_of_another_size_without_a_head_are_converted(tmp_path):
    network = timm.create_model('test_vit', num_classes=0, img_size=160)
    path = save(tmp_path / 'weights.pth', network)
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "head.weight"'):
        TimmTeacher('test_vit', path)
    teacher = TimmTeacher('test_vit', path, size=(64, 96), arguments=dict(num_classes=0))
    images = normalized(pixels(1, 3, 48, 48))
    found = teacher.features(images, PREPROCESSOR)
    assert found.map.shape == (1, 64, 4, 6)
    assert 'returns no logits (B, classes)' in refusal(teacher.logits, images, PREPROCESSOR)


def test_a_teacher_needs_weights_that_fit(tmp_path):
    assert 'name its weights with model.teacher.checkpoint=' in refusal(TimmTeacher, 'test_vit')
    path = save(tmp_path / 'vit.pth', timm.create_model('test_vit', img_size=64))
    teacher = TimmTeacher('test_vit', path, std=[1e-45] * 3, size=64)
    message = refusal(teacher.features, normalized(pixels(1, 3, 64, 64)), PREPROCESSOR)
    assert message.startswith('teacher test_vit returns NaN or infinite numbers: check its weights')


def test_a_teacher_takes_its_channels_in_its_order(tmp_path):
    network = Patches().eval()
    path = save(tmp_path / 'weights.pth', network)
    teacher = ModuleTeacher(dict(type='Patches'), path, channels=(3, 0, 2), **SCALE)
    bands = pixels(1, 13, 48, 32)
    of_bands = ImagePreprocessor([1.0] * 13, [2.0] * 13)
    images = of_bands(dict(inputs=[*bands]))['inputs']
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
    expected = network.conv((bands[:, [3, 0, 2]] - mean) / std)
    torch.testing.assert_close(teacher.features(images, of_bands).map, expected)


@pytest.mark.parametrize('arguments', [dict(), dict(num_prefix=2), dict(as_maps=True)])
def test_a_module_returns_tokens_or_maps(arguments, tmp_path):
    module = dict(type='Patches', **arguments)
    network = MODELS.build(module)
    path = save(tmp_path / 'weights.pth', network, prefix='backbone.')
    number = arguments.get('num_prefix', 0)
    teacher = ModuleTeacher(module, path, size=(48, 80), num_prefix_tokens=number, **SCALE)
    images = normalized(pixels(2, 3, 48, 80))
    found = teacher.features(images, PREPROCESSOR)
    torch.testing.assert_close(found.map, network.conv(images))
    vector = torch.zeros(2, 8) if number else found.map.mean((2, 3))
    torch.testing.assert_close(found.vector, vector)


def test_an_xcit_of_ours_says_how_its_images_are_normalized(tmp_path):
    torch.manual_seed(0)
    network = ImageXCiT(SMALL, 16).eval()
    images = normalized(pixels(2, 3, 64, 48))
    scale = dict(mean=[1.0, 2.0, 3.0], std=[4.0, 5.0, 6.0])
    of_file = dict(**scale, channels=3, bgr_to_rgb=PREPROCESSOR.bgr_to_rgb)
    path = save(tmp_path / 'weights.pth', network, prefix='backbone.', images=of_file)
    found = ModuleTeacher(XCIT, path).features(images, PREPROCESSOR)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in scale.values())
    expected = network.features((images * PREPROCESSOR.std + PREPROCESSOR.mean - mean) / std)
    torch.testing.assert_close(found.map, expected.map.detach())
    torch.testing.assert_close(found.vector, expected.token.detach())

    reversed_ = of_file | dict(bgr_to_rgb=not PREPROCESSOR.bgr_to_rgb)
    path = save(tmp_path / 'reversed.pth', network, prefix='backbone.', images=reversed_)
    found = ModuleTeacher(XCIT, path).features(images, PREPROCESSOR)
    raw = (images * PREPROCESSOR.std + PREPROCESSOR.mean).flip(1)
    torch.testing.assert_close(found.map, network.features((raw - mean) / std).map.detach())

    unknown = save(tmp_path / 'unknown.pth', network)
    assert 'does not say how its images are normalized' in refusal(ModuleTeacher, XCIT, unknown)
    of_trunk = save(tmp_path / 'trunk.pth', small_xcit(), images=of_file)
    assert f'{of_trunk} does not hold the weights' in refusal(ModuleTeacher, XCIT, of_trunk)
    trunk = dict(type='XCiT', arch=SMALL, patch_size=16, out_indices=(0, 1, 2, 3))
    assert ModuleTeacher(trunk, of_trunk).map_channels == 32
