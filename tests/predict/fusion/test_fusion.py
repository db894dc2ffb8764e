"""Models with fused layers against the models that they are copies of."""

import pickle

import pytest
import torch
from helpers import ROOT, randomize, relative_error
from torch import nn

from xcit_mm.base.errors import UserError
from xcit_mm.config.build_model import build_model
from xcit_mm.config.load import load_config
from xcit_mm.predict.fusion.fused_copy import FusedCopy, fuse, in_dtype
from xcit_mm.predict.fusion.winograd import WinogradConv2d

DETECTOR = 'mask_rcnn_xcit_n12_16_shapes'
# Both patch sizes; FPNs of mmdet and mmseg; extra maps; a norm before the FPN; no FPN.
CONFIGS = (
    DETECTOR,
    'mask_rcnn_xcit_t12_8_3x',
    'retinanet_xcit_t12_16_1x',
    'sem_fpn_xcit_n12_16_shapes',
    'upernet_xcit_t12_16_160k',
)
NARROW = {'upernet_xcit_t12_16_160k': {'model.decode_head.channels': 128}}  # as Winograd's need


def built(name: str, **options) -> nn.Module:
    options |= NARROW.get(name, {})
    model = build_model(load_config(ROOT / f'configs/{name}.py', options), 'cpu')
    randomize(model)
    return model.eval()


def outputs(model: nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
    """Return the maps of the neck, and what the first head computes from them."""
    maps = model.extract_feat(images)
    heads = [getattr(model, name, None) for name in ('rpn_head', 'bbox_head', 'decode_head')]
    predicted = next(head for head in heads if head is not None)(maps)
    flat = torch.utils._pytree.tree_leaves(predicted)
    return [*maps, *flat]


def assert_same_outputs(
    model: nn.Module, fused: nn.Module, size: tuple[int, int], images: int = 1
) -> None:
    images = torch.randn(images, 3, *size)
    for value, wanted in zip(outputs(fused, images), outputs(model, images), strict=True):
        assert value.shape == wanted.shape and relative_error(value, wanted) <= 1e-5


@pytest.fixture(scope='module', params=CONFIGS)
def model(request) -> nn.Module:
    """Each of the models, which no test changes."""
    return built(request.param)


@torch.no_grad()
def test_a_fused_model_computes_the_same(model):
    fused = fuse(model)
    for size, images in (((96, 128), 1), ((75, 101), 2)):
        assert_same_outputs(model, fused, size, images)


@torch.no_grad()
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_heads_return_float32_from_16_bits(model, dtype):
    images = torch.randn(1, 3, 64, 96)
    expected = outputs(model, images)
    with FusedCopy(dtype).of(model) as fused:
        values = outputs(fused, images)
    maps = len(model.extract_feat(images))
    has_neck = getattr(model, 'neck', None) is not None
    assert {value.dtype for value in values[:maps]} == {dtype} or not has_neck
    assert {value.dtype for value in values[maps:]} == {torch.float32}
    for value, wanted in zip(values, expected, strict=True):
        assert relative_error(value.float(), wanted) <= 16 * torch.finfo(dtype).eps


def test_what_is_fused():
    kinds = [type(m).__name__ for m in fuse(built(DETECTOR)).modules()]
    for kind, number in dict(FusedFPN=1, UpsamplingLateral=2).items():
        assert kinds.count(kind) == number
    segmentor = fuse(built('upernet_xcit_t12_16_160k'))
    assert not any(isinstance(m, nn.BatchNorm2d) for m in segmentor.decode_head.modules())
    wide = [name for name, m in segmentor.named_modules() if isinstance(m, WinogradConv2d)]
    assert 'decode_head.fpn_bottleneck.conv' in wide


def test_layers_with_hooks_and_other_layers_are_called():
    model = built(DETECTOR)
    model.neck.fpn_convs[0].conv = nn.Sequential(model.neck.fpn_convs[0].conv)
    seen = []
    model.backbone.register_forward_hook(lambda module, inputs, maps: seen.append(maps[0].shape))
    with torch.no_grad():
        fuse(model).extract_feat(torch.randn(1, 3, 64, 64))
    assert [tuple(shape) for shape in seen] == [(1, 128, 16, 16)]  # the map at stride 4


def test_hooks_on_lateral_convolutions_are_called_and_their_outputs_stay():
    model = built(DETECTOR)
    kept = []
    for lateral in model.neck.lateral_convs:
        lateral.register_forward_hook(lambda *args: kept.append((args[2], args[2].clone())))
    with torch.no_grad():
        fuse(model).extract_feat(torch.randn(1, 3, 64, 64))
    assert len(kept) == 4 and all(torch.equal(*pair) for pair in kept)


@torch.no_grad()
@pytest.mark.parametrize(
    'share_conv, options, with_hooks',
    [
        (True, dict(), False),  # one convolution for all levels, with a norm for each
        (True, dict(), True),
        (False, dict(affine=False), False),
        (False, dict(track_running_stats=False), False),
    ],
)
def test_batch_norms_that_cannot_be_folded(share_conv, options, with_hooks):
    head = dict(share_conv=share_conv, norm_cfg=dict(_delete_=True, type='BN', **options))
    model = built('rtmdet_xcit_t12_16_3x', **{'model.bbox_head': head})
    if with_hooks:
        for layers in model.bbox_head.cls_convs[1:]:
            layers[0].register_forward_hook(lambda *args: None)
    assert_same_outputs(model, fuse(model), (64, 96))


def test_variances_beyond_float16_are_refused():
    model = built(DETECTOR)
    model.backbone.patch_embed.proj[0][1].running_var.fill_(1e6)
    with pytest.raises(UserError, match=r'running_var exceeds the range of float16: use bfloat16'):
        in_dtype(model, torch.float16)


def test_the_model_stays_as_it_is_and_can_be_trained():
    model = built(DETECTOR)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for dtype in (torch.float32, torch.bfloat16):
        fuse(model, dtype)
    for name, value in model.state_dict().items():
        assert value.dtype == state[name].dtype and torch.equal(value, state[name])
    assert all(p.requires_grad for p in model.parameters())
    assert type(model.neck).__name__ == 'FPN'


def test_a_copy_follows_changes_of_the_model_and_of_its_test_cfg():
    model, fused_copy = built(DETECTOR), FusedCopy(torch.float32)
    with fused_copy.of(model) as first, fused_copy.of(model) as again:
        assert first is again
        model.rpn_head.test_cfg.max_per_img = 3
        assert first.rpn_head.test_cfg.max_per_img == 3
    model.test_cfg = model.test_cfg.copy()
    with fused_copy.of(model) as second, torch.no_grad():
        assert second is not first
        model.neck.lateral_convs[0].conv.weight.mul_(1.5)
    with fused_copy.of(model) as third, torch.no_grad():
        assert_same_outputs(model, third, (64, 64))


def test_a_model_that_was_made_in_inference_mode_is_fused():
    with torch.inference_mode():
        model = built(DETECTOR)
        with FusedCopy(torch.float32).of(model) as fused:
            fused.extract_feat(torch.randn(1, 3, 64, 64))


def test_a_copy_is_made_again_after_pickling():
    model, fused_copy = built(DETECTOR), FusedCopy(torch.bfloat16)
    with fused_copy.of(model):
        pass
    model, fused_copy = pickle.loads(pickle.dumps((model, fused_copy)))
    with fused_copy.of(model) as fused:
        assert fused.neck.fpn_convs[0].conv.weight.dtype == torch.bfloat16


def test_regions_keep_their_coordinates_in_16_bits():
    """bfloat16 would round them to multiples of 8 pixels."""
    model = built(DETECTOR)
    maps = [torch.randn(1, 64, 1600 // s, 1600 // s) for s in (4, 8, 16, 32)]
    maps = [m.to(memory_format=torch.channels_last) for m in maps]
    rois = torch.tensor([[0, 1301.3, 1205.7, 1333.1, 1241.9], [0, 1100.2, 700.1, 1500.9, 1403.3]])
    expected = model.roi_head.bbox_roi_extractor(maps, rois)
    with FusedCopy(torch.bfloat16).of(model) as fused:
        extract = fused.roi_head.bbox_roi_extractor
        values = extract([m.bfloat16() for m in maps], rois)
    assert relative_error(values.float(), expected) <= 2 * torch.finfo(torch.bfloat16).eps
