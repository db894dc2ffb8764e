"""Losses and gradients of segmentors, tile by tile, against mmseg's for the whole image."""

import copy

import numpy as np
import pytest
import torch
from helpers import assert_same_gradients, randomize, relative_error
from helpers.processes import in_processes
from helpers.small_xcit import SMALL
from mmengine.model import BaseModel
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import PixelData
from torch import Tensor, nn

from xcit_mm.base.environment import require_framework
from xcit_mm.base.errors import UserError
from xcit_mm.base.geometry import Window, length, whole
from xcit_mm.data.datasets.labels import LabelRule
from xcit_mm.large.losses import segment_loss
from xcit_mm.large.losses.segment_loss import losses, require_streamable_losses
from xcit_mm.large.maps import lazy as lazy_maps
from xcit_mm.large.maps.streamed_maps import Pyramid
from xcit_mm.large.tokens.passes import Passes
from xcit_mm.large.tokens.tape import Tape, TokenGradients
from xcit_mm.large.tokens.token_files import TokenFile
from xcit_mm.network.tokens import fill_up

SIZE = 137, 91
CLASSES = 5
IGNORED = 255
CROSS_ENTROPY = dict(type='CrossEntropyLoss')
DICE = dict(type='DiceLoss', use_sigmoid=False, loss_weight=0.7)
ALL = dict(in_channels=[32] * 4, in_index=[0, 1, 2, 3], channels=8)


def head(type: str, **options) -> dict:
    options = dict(in_channels=32, channels=8) | options
    norm = dict(type='BN', requires_grad=True)
    return dict(type=type, num_classes=CLASSES, norm_cfg=norm, **options)


NECK = dict(type='FPN', in_channels=[32] * 4, out_channels=16, num_outs=4)
ON_NECK = dict(in_channels=[16] * 4)
SEGMENTORS = {
    'semantic FPN': dict(
        neck=NECK,
        decode_head=head('FPNHead', **ALL | ON_NECK, feature_strides=[4, 8, 16, 32]),
        auxiliary_head=[
            head('FCNHead', in_channels=16, in_index=1, loss_decode=[DICE, CROSS_ENTROPY]),
            head('FCNHead', in_channels=16, in_index=3, num_convs=1, align_corners=True),
        ],
    ),
    'UperNet': dict(
        decode_head=head('UPerHead', **ALL),
        auxiliary_head=head('FCNHead', in_index=2, num_convs=1, concat_input=False),
    ),
    'PSPNet': dict(
        neck=NECK, decode_head=head('PSPHead', in_channels=16, in_index=1, pool_scales=(1, 3))
    ),
    'DeepLabV3': dict(decode_head=head('ASPPHead', in_index=2, dilations=(1, 2, 3))),
    'SegFormer': dict(decode_head=head('SegformerHead', **ALL, loss_decode=[CROSS_ENTROPY, DICE])),
}


def build(patch_size: int = 16, **parts) -> BaseModel:
    """Build a segmentor in training mode, but for its BatchNorms, in float64."""
    backbone = dict(type='XCiT', arch=SMALL, patch_size=patch_size, out_indices=(0, 1, 2, 3))
    backbone['pad_maps'] = True
    require_framework('mmseg')
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = MODELS.build(dict(type='AlignedEncoderDecoder', backbone=backbone, **parts))
    randomize(model)
    model.train().double().backbone.eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return model


class LabelsInMemory:
    def __init__(self, labels: np.ndarray) -> None:
        self.labels, self.shape = labels, labels.shape
        self.counts = np.bincount(labels.flatten(), minlength=256)

    def read(self, window: Window) -> np.ndarray:
        return self.labels[tuple(window)]

    def require_classes(self, rule: LabelRule) -> None:
        if rule.broken_by(self.labels).size:
            raise UserError('a label is no class')


def draw_labels(classes: int = CLASSES, ignored: bool = True) -> LabelsInMemory:
    random = np.random.RandomState(0)
    labels = random.randint(0, classes, SIZE).astype(np.uint8)
    if ignored:
        labels[random.uniform(size=SIZE) < 0.2] = IGNORED
        labels[:50, :40] = IGNORED  # whole tiles
    return LabelsInMemory(labels)


@pytest.fixture(autouse=True)
def losses_in_float64(monkeypatch):
    """mmseg's losses convert labels to float32, and then compute with them."""
    monkeypatch.setattr(Tensor, 'float', Tensor.double)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def computed_passes(model: BaseModel) -> Passes:
    dtype = next(model.parameters()).dtype
    passes = Passes(model.backbone, torch.randn(3, *SIZE, dtype=dtype))
    passes.run()
    return passes


def of_mmseg(
    model: BaseModel, passes: Passes, labels: LabelsInMemory
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return mmseg's losses, and the gradients of the tokens of the levels and the parameters."""
    from mmseg.structures import SegDataSample

    model = copy.deepcopy(model)
    tokens, maps = {}, []
    for index, _, resize, norm in model.backbone.levels:
        x = passes.store(index + 1).read(whole(passes.size)).requires_grad_()
        tokens[f'tokens {index}'] = x
        map_of_tokens = fill_up(x.permute(2, 0, 1)[None], 32 // model.backbone.patch_size)
        maps.append(norm(resize(map_of_tokens)))
    model.backbone.forward = lambda image: tuple(maps)
    sample = SegDataSample()
    sample.gt_sem_seg = PixelData(data=torch.from_numpy(labels.labels)[None].long())
    log = model.loss(torch.zeros(1, 3, *SIZE), [sample])
    model.parse_losses(log)[0].backward()
    # A head that reads only some levels has no gradient for the others.
    of_tokens = {n: torch.zeros_like(x) if x.grad is None else x.grad for n, x in tokens.items()}
    return log, of_tokens | gradients(model)


def of_tiles(
    model: BaseModel, passes: Passes, labels: LabelsInMemory
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the same, computed tile by tile; with the tokens of this process."""
    shards, shape = passes.shards, (passes.size[1], SMALL['embed_dim'])
    of_levels = {
        f'tokens {index}': TokenGradients(
            TokenFile(shards.rows, shape, passes.dtype).zero_(), shards
        )
        for index, *_ in model.backbone.levels
    }
    pyramid = Pyramid(passes, Tape(), list(of_levels.values()))
    with torch.no_grad():  # as in the forward of a function of autograd
        log = losses(model, pyramid, labels)
    tokens = {}
    for name, gradient in of_levels.items():
        gradient.settle()
        tokens[name] = torch.from_numpy(gradient.file.array())
    return log, tokens | gradients(model)


def compare(model: BaseModel, labels: LabelsInMemory) -> None:
    """Compare losses and gradients; what is drawn at random starts with the same generator."""
    passes = computed_passes(model)
    torch.manual_seed(1)
    expected, of_whole = of_mmseg(model, passes, labels)
    torch.manual_seed(1)
    log, of_parts = of_tiles(model, passes, labels)
    assert list(log) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(log[name], value.mean(), rtol=1e-10, atol=0)
    assert list(of_parts) == list(of_whole)
    assert_same_gradients(of_whole, of_parts.values(), of_whole.values(), 1e-10)


@pytest.mark.parametrize(('name', 'tile'), [*((name, 48) for name in SEGMENTORS), ('UperNet', 512)])
def test_losses_and_gradients_equal_mmsegs(name, tile, monkeypatch):
    monkeypatch.setattr(segment_loss, 'MAX_TILE', tile)
    monkeypatch.setattr(segment_loss, 'MAX_SCORES', 64 * 64 * CLASSES)
    compare(build(**SEGMENTORS[name]), draw_labels())


WEIGHTS = [0.5, 1.0, 2.0, 0.0, 3.0]
SIGMOID = CROSS_ENTROPY | dict(use_sigmoid=True)
LOSSES = {
    'mean of labeled': CROSS_ENTROPY | dict(avg_non_ignore=True, loss_weight=0.4),
    'sum': CROSS_ENTROPY | dict(reduction='sum'),
    'each pixel': CROSS_ENTROPY | dict(reduction='none'),
    'sigmoids': SIGMOID,
    'sigmoids of labeled': SIGMOID | dict(avg_non_ignore=True),
    'each sigmoid': SIGMOID | dict(reduction='none'),
    'Dice of sigmoids': dict(type='DiceLoss'),
    'Dice, naive': DICE | dict(naive_dice=True, eps=0.5),
    'Dice without a class': DICE | dict(ignore_index=2),
    'Dice of scores': DICE | dict(activate=False),
    'the same twice': [CROSS_ENTROPY, CROSS_ENTROPY | dict(use_sigmoid=True, loss_weight=0.2)],
    'only logged': [CROSS_ENTROPY, DICE | dict(loss_name='dice')],
}


def build_with_loss(loss: dict | list, **options) -> BaseModel:
    return build(decode_head=head('SegformerHead', **ALL, **options, loss_decode=loss))


@pytest.mark.parametrize('name', LOSSES)
def test_losses_of_mmseg(name, monkeypatch):
    monkeypatch.setattr(segment_loss, 'MAX_TILE', 64)
    compare(build_with_loss(LOSSES[name]), draw_labels())


@pytest.mark.parametrize(
    'loss',
    [SIGMOID, SIGMOID | dict(avg_non_ignore=True, class_weight=[3.0]), dict(type='DiceLoss')],
)
def test_losses_of_one_output(loss, monkeypatch):
    monkeypatch.setattr(segment_loss, 'MAX_TILE', 64)
    model = build_with_loss(loss, out_channels=1, threshold=0.5)
    compare(model, draw_labels(classes=2))


def test_weights_of_classes():
    compare(build_with_loss(CROSS_ENTROPY | dict(class_weight=WEIGHTS)), draw_labels(ignored=False))


def test_ignored_labels_have_no_weight():
    """mmseg fails here, in one of the two stacks without avg_non_ignore as well."""
    loss = CROSS_ENTROPY | dict(class_weight=WEIGHTS, avg_non_ignore=True)
    model, labels = build_with_loss(loss), draw_labels()
    passes = computed_passes(model)
    torch.manual_seed(1)
    log, _ = of_tiles(model, passes, labels)
    torch.manual_seed(1)
    scores = model.decode_head(model.backbone(passes.image[None]))
    scores = nn.functional.interpolate(scores, scale_factor=4, mode='bilinear')
    scores = scores[..., : SIZE[0], : SIZE[1]]
    targets = torch.from_numpy(labels.labels)[None].long()
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    expected = nn.functional.cross_entropy(scores, targets, weights, ignore_index=IGNORED)
    torch.testing.assert_close(log['decode.loss_ce'], expected.detach(), rtol=1e-10, atol=0)


@pytest.mark.parametrize('name', ['UperNet', 'SegFormer'])
def test_autocast(name, monkeypatch):
    monkeypatch.undo()  # losses in float64 would hide a dtype that does not fit
    model, labels = build(**SEGMENTORS[name]).float(), draw_labels()
    passes = computed_passes(model)
    results = []
    for function in (of_mmseg, of_tiles):
        torch.manual_seed(1)
        with torch.autocast('cpu', torch.bfloat16):
            results.append(function(model, passes, labels))
    (expected, of_whole), (log, of_parts) = results
    for key, value in expected.items():
        assert log[key].dtype == torch.float32
        assert relative_error(log[key], value.mean()) < (0.2 if 'acc' in key else 1e-2)
    for key, value in of_whole.items():
        assert of_parts[key].dtype == torch.float32
        assert relative_error(of_parts[key], value) < 0.1, key


def test_an_image_without_labels():
    labels = LabelsInMemory(np.full(SIZE, IGNORED, np.uint8))
    compare(build_with_loss(CROSS_ENTROPY), labels)


@pytest.mark.parametrize(
    ('parts', 'message'),
    [
        (dict(loss_decode=dict(type='FocalLoss')), 'FocalLoss .decode. cannot be computed tile by'),
        (dict(loss_decode=dict(type='LovaszLoss', per_image=True)), 'LovaszLoss .decode.'),
        (dict(sampler=dict(type='OHEMPixelSampler')), 'OHEMPixelSampler .decode. compares all'),
    ],
)
def test_other_losses_are_refused(parts, message):
    model = build(decode_head=head('FCNHead', **parts))
    with pytest.raises(UserError, match=message):
        require_streamable_losses(model)


def test_heads_with_losses_of_their_own_are_refused():
    model = build(decode_head=head('FCNHead'))
    require_streamable_losses(model)

    class Other(type(model.decode_head)):
        def loss_by_feat(self, seg_logits: Tensor, batch_data_samples: list) -> dict:
            return {}

    model.decode_head.__class__ = Other
    with pytest.raises(UserError, match=r'Other \(decode\) overrides loss_by_feat'):
        require_streamable_losses(model)


def test_a_tile_reads_only_what_is_near(monkeypatch):
    monkeypatch.setattr(segment_loss, 'MAX_TILE', 64)
    monkeypatch.setattr(lazy_maps, 'TILE', (64 // 32, 64 // 32))
    widths, add = [], TokenGradients.add

    def recorded(gradients: TokenGradients, window: Window, values: Tensor) -> None:
        widths.append(length(window.columns))
        add(gradients, window, values)

    monkeypatch.setattr(TokenGradients, 'add', recorded)
    model = build(**SEGMENTORS['UperNet'])
    passes = Passes(model.backbone, torch.randn(3, 64, 1500, dtype=torch.float64))
    passes.run()
    of_tiles(model, passes, LabelsInMemory(np.zeros((64, 1500), np.uint8)))
    assert 4 <= max(widths) <= 64 // 16 + 2 * 10 < passes.size[1] // 3


@pytest.mark.parametrize('name', ['UperNet', 'semantic FPN'])
def test_several_processes(name, tmp_path, monkeypatch):
    monkeypatch.setattr(segment_loss, 'MAX_TILE', 48)
    model, labels = build(**SEGMENTORS[name]), draw_labels()
    image = torch.randn(3, *SIZE, dtype=torch.float64)
    passes = Passes(model.backbone, image)
    passes.run()
    torch.manual_seed(1)
    expected, of_whole = of_mmseg(model, passes, labels)

    def compare_shares(rank: int) -> None:
        passes = Passes(model.backbone, image)
        passes.run()
        torch.manual_seed(1 + rank)  # the first process draws for all
        log, of_parts = of_tiles(model, passes, labels)
        for name, value in expected.items():
            torch.testing.assert_close(log[name], value.mean(), rtol=1e-10, atol=0)
        shared = {}
        for name, gradient in of_parts.items():
            wanted = of_whole[name]
            if name.startswith('tokens'):
                own = wanted[passes.shards.rows]
                assert (gradient - own).norm() <= 1e-10 * wanted.norm()
            else:
                shared[name] = passes.shards.sum(gradient)
        wanted = [of_whole[name] for name in shared]
        assert_same_gradients(shared, shared.values(), wanted, 1e-10)

    in_processes(2, compare_shares, tmp_path)
