"""The maps of XCiT, and the labels of segmentors on it, lie at the pixels that the tokens saw."""

import copy

import pytest
import torch
from helpers import randomize, relative_error
from helpers.heights import build_heights
from helpers.segmentors import build
from helpers.small_xcit import small_xcit
from mmengine.config import Config
from mmengine.structures import PixelData
from torch.nn import functional as F

from xcit_mm.config.aligned_maps import align_maps
from xcit_mm.config.replacements import replace_classes
from xcit_mm.network.pyramid import covered_size
from xcit_mm.network.rows import ALONE
from xcit_mm.network.waits import counted
from xcit_mm.train.padded_rows import PaddedRows


def enlarged(scores: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Enlarge scores of stride 4 exactly 4 times, and crop them to the image."""
    return F.interpolate(scores, scale_factor=4, mode='bilinear')[..., : size[0], : size[1]]


@pytest.mark.parametrize('patch_size', [16, 8, 4])
@pytest.mark.parametrize('size', [(97, 130), (64, 81), (161, 75)])
def test_maps_are_the_published_ones_of_an_image_of_whole_patches(patch_size, size):
    backbone = small_xcit(patch_size, pad_maps=True).eval()
    randomize(backbone)
    image = torch.randn(2, 3, *size)
    maps = backbone(image)
    with_whole_patches = F.pad(
        image, (0, -size[1] % patch_size, 0, -size[0] % patch_size), 'replicate'
    )
    backbone.pad_maps = backbone.patch_embed.fill = False
    published = backbone(with_whole_patches)
    covered = covered_size(size)
    for x, other, stride in zip(maps, published, (4, 8, 16, 32), strict=True):
        assert x.shape[2:] == tuple(n // stride for n in covered)
        _, _, H, W = other.shape
        torch.testing.assert_close(x[..., :H, :W], other)
    last = patch_size // 8 + 1  # the map whose pixels are tokens
    H, W = (-(-n // patch_size) for n in size)
    assert (maps[last][:, :, H:] == maps[last][:, :, H - 1 : H]).all()
    assert (maps[last][..., W:] == maps[last][..., W - 1 : W]).all()


@pytest.mark.parametrize('name', ['sem_fpn_xcit_t12_16_80k', 'upernet_xcit_t12_8_160k'])
@pytest.mark.parametrize('mode', ['whole', 'slide'])
def test_scores_are_enlarged_exactly_four_times_at_any_size(name, mode):
    model = build(name)
    model.test_cfg.update(mode=mode, crop_size=(70, 90), stride=(70, 90))  # crops side by side
    for size in ((140, 90), (97, 81)) if mode == 'whole' else ((140, 90), (60, 81)):
        image = torch.randn(1, 3, *size)
        meta = dict(ori_shape=size, img_shape=size, pad_shape=size)
        with torch.no_grad():
            scores = model.inference(image, [meta])
            crop = image if mode == 'whole' else image[:, :, :70]
            maps = model.extract_feat(crop)
            expected = enlarged(model.decode_head(maps), crop.shape[2:])
        assert scores.shape[2:] == size
        assert relative_error(scores[:, :, : crop.shape[2]], expected) <= 1e-6


def test_losses_compare_pixels_with_the_labels_at_their_place():
    from mmseg.structures import SegDataSample

    model = build('sem_fpn_xcit_t12_16_80k')
    size = 97, 75
    image, labels = torch.randn(2, 3, *size), torch.randint(0, 150, (2, 1, *size))
    samples = [SegDataSample(gt_sem_seg=PixelData(data=x)) for x in labels]
    with torch.no_grad():
        loss = model.loss(image, samples)['decode.loss_ce']
        scores = enlarged(model.decode_head(model.neck(model.backbone(image))), size)
    torch.testing.assert_close(loss, F.cross_entropy(scores, labels[:, 0]))


def test_heights_are_compared_at_their_place():
    from mmseg.structures import SegDataSample

    model = build_heights()
    size = 97, 75
    image, heights = torch.randn(1, 3, *size), torch.randn(1, *size)
    sample = SegDataSample(gt_depth_map=PixelData(data=heights))
    with torch.no_grad():
        (loss,) = (v for k, v in model.loss(image, [sample]).items() if 'loss' in k)
        found = enlarged(model.decode_head(model.neck(model.backbone(image))), size)
    torch.testing.assert_close(loss, (found[0] - heights).abs().mean())


def test_an_image_gets_the_same_tokens_in_a_padded_batch_as_alone():
    backbone = small_xcit(16).double().eval()
    randomize(backbone)
    sizes = (96, 128), (160, 112)
    images = [torch.randn(1, 3, *size, dtype=torch.float64) for size in sizes]
    batch = [F.pad(x, (0, 128 - x.shape[3], 0, 160 - x.shape[2])) for x in images]
    alone = [backbone(image)[2] for image in images]
    seen = backbone(torch.cat(batch))[2]
    backbone.rows = PaddedRows(sizes, 16)
    maps = backbone(torch.cat(batch))[2]
    backbone.rows = ALONE
    for x, other, expected in zip(maps, seen, alone, strict=True):
        window = ..., slice(expected.shape[2]), slice(expected.shape[3])
        assert relative_error(x[window], expected[0]) <= 1e-12
        assert relative_error(other[window], expected[0]) > 1e-2  # it attends to the padding


def test_gradients_ignore_padding():
    backbone = small_xcit(16, norm_eval=True).double().train()
    randomize(backbone)
    image = torch.randn(1, 3, 80, 64, dtype=torch.float64)
    cotangent = torch.randn(1, 32, 5, 4, dtype=torch.float64)
    copies = backbone, copy.deepcopy(backbone)
    (copies[0](image)[2] * cotangent).sum().backward()
    copies[1].rows = PaddedRows([(80, 64)], 16)
    padded = F.pad(image, (0, 64, 0, 48))
    (copies[1](padded)[2][..., :5, :4] * cotangent).sum().backward()
    for (name, p), q in zip(backbone.named_parameters(), copies[1].parameters(), strict=True):
        if p.grad is not None and p.grad.norm() > 0:
            assert relative_error(q.grad, p.grad) <= 1e-10, name


CONFIGS = {
    'segmentor': dict(default_scope='mmseg', model=dict(type='mmseg.EncoderDecoder')),
    'heights': dict(default_scope='mmseg', model=dict(type='DepthEstimator')),
    'detector': dict(
        default_scope='mmdet',
        model=dict(data_preprocessor=dict(type='DetDataPreprocessor', pad_size_divisor=20)),
    ),
}


@pytest.mark.parametrize('name', CONFIGS)
def test_configs_get_maps_that_lie_at_their_pixels(name):
    cfg = Config(copy.deepcopy(CONFIGS[name]))
    cfg.model.backbone = dict(type='ResNet')
    assert not replace_classes(cfg) and not align_maps(cfg)
    cfg.model.backbone = dict(type='XCiT')
    assert bool(replace_classes(cfg)) == (name != 'detector')
    assert len(align_maps(cfg)) == 1
    assert not replace_classes(cfg) and not align_maps(cfg)
    if name == 'detector':
        assert cfg.model.data_preprocessor.pad_size_divisor == 160
    else:
        assert cfg.model.type.startswith('Aligned') and cfg.model.backbone.pad_maps


@pytest.mark.parametrize('name', ['sem_fpn_xcit_t12_16_80k', 'upernet_xcit_t12_8_160k'])
@pytest.mark.parametrize('labeled', [0, 1, 50])  # rows
def test_the_loss_of_a_segmentor_is_that_of_mmseg_and_does_not_wait(name, labeled):
    model = build(name)
    from mmseg.models import EncoderDecoder
    from mmseg.structures import SegDataSample

    model.decode_head.loss_decode.avg_non_ignore = labeled == 1
    labels = torch.randint(0, 150, (2, 1, 64, 96))
    labels[:, :, labeled:] = 255
    samples = [SegDataSample(gt_sem_seg=PixelData(data=of_image)) for of_image in labels]
    images = torch.randn(2, 3, 64, 96)
    torch.manual_seed(0)  # of the dropout
    expected = EncoderDecoder.loss(model, images, samples)
    torch.manual_seed(0)
    with counted() as operations:
        losses = model.loss(images, samples)
    assert losses.keys() == expected.keys() == {'decode.loss_ce', 'decode.acc_seg'}
    assert all(torch.equal(value, expected[key]) for key, value in losses.items())
    assert not operations.waits
