"""Compare BatchedRoIHead with mmdet's StandardRoIHead on the same samples."""

import copy

import numpy as np
import pytest
import torch
from helpers import relative_error
from helpers.same_draws import same_draws
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import InstanceData

from xcit_mm.base.environment import require_framework

require_framework('mmdet')

from mmdet.structures import DetDataSample  # noqa: E402
from mmdet.structures.mask import BitmapMasks, PolygonMasks  # noqa: E402

from xcit_mm.config.load import load_config  # noqa: E402
from xcit_mm.network.heads import mask_targets  # noqa: E402
from xcit_mm.network.heads.batched_roi_head import BatchedRoIHead  # noqa: E402
from xcit_mm.network.waits import counted  # noqa: E402

CFG = load_config('configs/mask_rcnn_xcit_s12_16_3x.py').model
CHANNELS = 8
SIZE = 128, 192
ALL = dict(type='RandomSampler', num=10**4, pos_fraction=0.5, add_gt_as_proposals=True)


def head(kind: str, train: dict | None = None, boxes: dict | None = None, masks: bool = True):
    cfg = copy.deepcopy(CFG.roi_head)
    cfg.type = kind
    cfg.bbox_roi_extractor.out_channels = cfg.mask_roi_extractor.out_channels = CHANNELS
    cfg.bbox_head.update(in_channels=CHANNELS, fc_out_channels=16, num_classes=5, **(boxes or {}))
    options = dict(in_channels=CHANNELS, conv_out_channels=CHANNELS, num_classes=5, num_convs=1)
    cfg.mask_head.update(options)
    if not masks:
        del cfg.mask_head, cfg.mask_roi_extractor
    train_cfg = copy.deepcopy(CFG.train_cfg.rcnn)
    train_cfg.update(train or {})
    with DefaultScope.overwrite_default_scope('mmdet'):
        module = MODELS.build(dict(cfg, train_cfg=train_cfg, test_cfg=CFG.test_cfg.rcnn))
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return module


def maps(size: tuple[int, int] = SIZE, batch: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(1)
    sides = [tuple(-(-side // stride) for side in size) for stride in (4, 8, 16, 32, 64)]
    return [torch.randn(batch, CHANNELS, *each, requires_grad=True) for each in sides]


def boxes(count: int, size: tuple[int, int] = SIZE) -> torch.Tensor:
    corners = torch.rand(count, 2) * torch.tensor([size[1] * 0.7, size[0] * 0.7])
    sides = 4 + torch.rand(count, 2) * torch.tensor([size[1] * 0.6, size[0] * 0.6])
    return torch.cat((corners, corners + sides), dim=1)


def batch(
    objects: tuple[int, ...], proposals: tuple[int, ...], size: tuple[int, int] = SIZE
) -> tuple[list[InstanceData], list[DetDataSample]]:
    torch.manual_seed(2)
    random, proposed, samples = np.random.default_rng(0), [], []
    for count, number in zip(objects, proposals, strict=True):
        found = boxes(count, size)
        near = found.repeat(3, 1) + 4 * torch.randn(3 * count, 4)  # some are positive
        near[:, 2:] = near[:, 2:].maximum(near[:, :2] + 1)
        candidates = torch.cat((near, boxes(number, size)))[:number]
        proposed.append(InstanceData(bboxes=candidates, scores=torch.rand(number)))
        masks = (random.random((count, *size)) < 0.5).astype(np.uint8)
        sample = DetDataSample(metainfo=dict(img_shape=size))
        sample.gt_instances = InstanceData(
            bboxes=found, labels=torch.randint(0, 5, (count,)), masks=BitmapMasks(masks, *size)
        )
        samples.append(sample)
    return proposed, samples


def computed(module, objects, proposals):
    x = maps(batch=len(objects))
    losses = module.loss(x, *batch(objects, proposals))
    module.zero_grad()
    sum(value.sum() for name, value in losses.items() if 'loss' in name).backward()
    return losses, [p.grad for p in module.parameters()] + [each.grad for each in x[:4]]


def assert_equal(ours, theirs) -> None:
    assert ours[0].keys() == theirs[0].keys()
    for name, wanted in theirs[0].items():
        found = ours[0][name]
        assert relative_error(found, wanted) < 1e-6 or wanted == found == 0, name
    for found, wanted in zip(ours[1], theirs[1], strict=True):
        if wanted is None or not wanted.any():
            assert found is None or not found.any()
        else:
            assert relative_error(found, wanted) < 1e-5


@pytest.mark.parametrize(
    ('objects', 'proposals'),
    [
        ((4, 4), (60, 60)),
        ((1, 6, 0), (40, 0, 20)),
        ((0, 0), (30, 20)),
    ],
)
@pytest.mark.parametrize(
    ('train', 'options'),
    [
        ({}, {}),
        (dict(pos_weight=2.0), dict(boxes=dict(reg_class_agnostic=True))),
        ({}, dict(masks=False, boxes=dict(loss_bbox=dict(type='SmoothL1Loss')))),
    ],
)
def test_losses_and_gradients_equal_those_of_mmdet(objects, proposals, train, options):
    train = dict(sampler=ALL) | train
    assert_equal(
        *(
            computed(head(kind, train, **options), objects, proposals)
            for kind in ('BatchedRoIHead', 'StandardRoIHead')
        )
    )


def test_samples_drawn_with_the_same_numbers_have_the_same_losses(monkeypatch):
    same_draws(monkeypatch)
    monkeypatch.setattr(mask_targets, 'MAX_MASKS', 3)  # masks are cut out in parts
    train = dict(sampler=dict(ALL, num=32, pos_fraction=0.25))
    assert_equal(
        *(
            computed(head(kind, train), (4, 4), (60, 60))
            for kind in ('BatchedRoIHead', 'StandardRoIHead')
        )
    )


@pytest.mark.parametrize(
    'train',
    [
        dict(soft_mask_target=True),
        dict(mask_size=(28, 28)),
        dict(sampler=dict(type='OHEMSampler', num=8, pos_fraction=0.5)),
    ],
)
def test_what_is_computed_by_mmdet_itself(monkeypatch, train):
    monkeypatch.setattr(BatchedRoIHead, '_targets', None)
    module = head('BatchedRoIHead')
    if 'sampler' in train:
        module.bbox_sampler.__class__ = type('Other', (type(module.bbox_sampler),), {})
    else:
        module.train_cfg.update(train)
    losses, _ = computed(module, (2, 1), (20, 20))
    assert losses['loss_mask'].isfinite()


def test_other_extractors_and_heads_without_deltas_are_left_to_mmdet(monkeypatch):
    monkeypatch.setattr(BatchedRoIHead, '_targets', None)
    losses, _ = computed(head('BatchedRoIHead', boxes=dict(with_reg=False)), (2, 1), (20, 20))
    assert losses['loss_cls'].isfinite() and 'loss_bbox' not in losses
    module, calls = head('BatchedRoIHead'), []
    extractor = module.mask_roi_extractor
    base = type(extractor)

    class Other(base):
        def forward(self, *args):
            calls.append(args)
            return super().forward(*args)

    extractor.__class__ = Other
    computed(module, (2, 1), (20, 20))
    assert len(calls) == 1


def test_boxes_of_negative_area_are_samples_like_others():
    module, (proposals, samples) = head('BatchedRoIHead', dict(sampler=ALL)), batch((1,), (20,))
    proposals[0].bboxes[10:] = proposals[0].bboxes[10:, [0, 3, 2, 1]]
    counts = []
    module.bbox_head.register_forward_pre_hook(lambda _, args: counts.append(len(args[0])))
    assert module.loss(maps(batch=1), proposals, samples)['loss_cls'].isfinite()
    assert counts == [21]


def test_a_batch_without_samples_has_losses_of_zero():
    between = dict(assigner=dict(CFG.train_cfg.rcnn.assigner, pos_iou_thr=0.7, neg_iou_thr=0.3))
    between['assigner']['min_pos_iou'] = 0.7
    between['sampler'] = dict(ALL, add_gt_as_proposals=False)
    _, samples = batch((1,), (1,))
    corner, other = samples[0].gt_instances.bboxes.split(2, dim=1)
    half = torch.cat((corner, corner + (other - corner) * 0.7), dim=1)  # an overlap of 0.49
    module, x = head('BatchedRoIHead', between), maps(batch=1)
    losses = module.loss(x, [InstanceData(bboxes=half, scores=torch.ones(1))], samples)
    assert [losses[name].item() for name in ('loss_cls', 'loss_bbox', 'loss_mask')] == [0, 0, 0]
    sum(value for name, value in losses.items() if 'loss' in name).backward()
    assert all(each.grad is not None and not each.grad.any() for each in x[:4])


def test_polygons_are_cut_by_mmdet(monkeypatch):
    monkeypatch.setattr(BatchedRoIHead, '_targets', None)
    proposals, samples = batch((1, 1), (20, 20))
    for sample in samples:
        outline = np.array([10.0, 10, 60, 10, 60, 60, 10, 60])
        sample.gt_instances.masks = PolygonMasks([[outline]], *SIZE)
    losses = head('BatchedRoIHead').loss(maps(), proposals, samples)
    assert losses['loss_mask'].isfinite()


def test_it_starts_less_than_half_of_the_operators_and_waits_once():
    size, counts, names = (320, 480), {}, []
    for kind in ('StandardRoIHead', 'BatchedRoIHead'):
        module, x = head(kind), maps(size)
        names.append(module.state_dict().keys())
        layers = [*module.bbox_roi_extractor.roi_layers, *module.mask_roi_extractor.roi_layers]
        for layer in layers:  # on a CPU, RoIAlign consists of many operators
            layer.forward = lambda x, rois, layer=layer: x.new_zeros(
                len(rois), CHANNELS, *layer.output_size, requires_grad=True
            )
        data = batch((8, 8), (200, 200), size)
        with counted() as operations:
            module.loss(x, *data)
        counts[kind] = operations
    ours, theirs = counts['BatchedRoIHead'], counts['StandardRoIHead']
    assert 2 * ours.started.total() < theirs.started.total()
    assert dict(ours.waits) == {'tolist': 1}
    assert names[0] == names[1]


def test_regions_keep_their_corners_in_16_bits():
    wide, narrow = [], []
    for values, dtype in ((wide, None), (narrow, torch.bfloat16)):
        module, seen = head('BatchedRoIHead', dict(sampler=ALL)), values
        for layer in module.bbox_roi_extractor.roi_layers:
            layer.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[1]))
        with torch.autocast('cpu', torch.bfloat16, enabled=dtype is not None):
            losses, _ = computed(module, (4, 2), (60, 60))
        assert all(value.isfinite() for value in losses.values())
    assert all(torch.equal(a, b) for a, b in zip(wide, narrow, strict=True))
