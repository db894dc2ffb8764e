"""Compare BatchedRPNHead with mmdet's RPNHead on the same samples."""

import copy

import numpy as np
import pytest
import torch
from helpers import relative_error
from helpers.same_draws import same_draws
from mmengine.config import ConfigDict
from mmengine.structures import InstanceData

from xcit_mm.base.environment import require_framework

require_framework('mmdet')

from mmdet.models.dense_heads import RPNHead  # noqa: E402
from mmdet.models.task_modules.prior_generators import AnchorGenerator  # noqa: E402
from mmdet.structures import DetDataSample  # noqa: E402

from xcit_mm.config.load import load_config  # noqa: E402
from xcit_mm.network.heads.batched_rpn_head import BatchedRPNHead  # noqa: E402
from xcit_mm.network.waits import counted  # noqa: E402

STRIDES = 4, 8, 16, 32, 64
CHANNELS = 8
ALL = dict(type='RandomSampler', num=10**6, pos_fraction=0.5, add_gt_as_proposals=False)
CFG = load_config('configs/mask_rcnn_xcit_s12_16_3x.py').model


def head(kind: type[RPNHead], train: dict | None = None, **options) -> RPNHead:
    cfg = copy.deepcopy(CFG.rpn_head)
    cfg.pop('type')
    cfg.update(in_channels=CHANNELS, feat_channels=CHANNELS, **options)
    train_cfg = ConfigDict(CFG.train_cfg.rpn | (train or {}))
    torch.manual_seed(0)
    module = kind(**cfg, train_cfg=train_cfg, test_cfg=CFG.test_cfg.rpn)
    for parameter in module.parameters():  # scores far enough apart for one order
        torch.nn.init.normal_(parameter, std=0.2)
    return module


def maps(size: tuple[int, int], batch: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(1)
    sides = [tuple(-(-side // stride) for side in size) for stride in STRIDES]
    return [torch.randn(batch, CHANNELS, *each, requires_grad=True) for each in sides]


def samples(counts: tuple[int, ...], size: tuple[int, int], shapes=None) -> list[DetDataSample]:
    torch.manual_seed(2)
    made = []
    for i, count in enumerate(counts):
        shape = shapes[i] if shapes else size
        corners = torch.rand(count, 2) * torch.tensor([shape[1] - 40.0, shape[0] - 40.0])
        boxes = torch.cat((corners, corners + 8 + 60 * torch.rand(count, 2)), dim=1)
        sample = DetDataSample(metainfo=dict(img_shape=shape, pad_shape=shape))
        sample.gt_instances = InstanceData(bboxes=boxes, labels=torch.zeros(count).long())
        made.append(sample)
    return made


def computed(module: RPNHead, size: tuple[int, int], batch: list[DetDataSample], **cfg):
    x = maps(size, len(batch))
    proposal_cfg = ConfigDict(CFG.train_cfg.rpn_proposal | cfg)
    losses, proposals = module.loss_and_predict(x, batch, proposal_cfg)
    totals = {name: sum(value) for name, value in losses.items()}
    module.zero_grad()
    sum(totals.values()).backward()
    gradients = [p.grad for p in module.parameters()] + [each.grad for each in x]
    return totals, gradients, proposals


def assert_same_proposals(ours: list[InstanceData], theirs: list[InstanceData]) -> None:
    """Boxes of equal scores may come in another order."""
    for found, wanted in zip(ours, theirs, strict=True):
        assert found.labels.equal(wanted.labels) or not len(wanted)
        rows = (torch.cat((x.bboxes, x.scores[:, None]), dim=1) for x in (found, wanted))
        found, wanted = (sorted(x.tolist(), key=lambda r: (round(r[4], 6), r[0])) for x in rows)
        assert np.allclose(found, wanted, rtol=1e-5, atol=1e-3) and len(found) == len(wanted)


@pytest.mark.parametrize(
    ('counts', 'shapes'),
    [
        ((8, 0), None),
        ((0, 0), None),
        ((30,), None),
        ((4, 9, 2), ((192, 256), (160, 200), (192, 100))),  # padded images
    ],
)
@pytest.mark.parametrize(
    ('train', 'options'),
    [
        ({}, {}),
        # mmdet numbers the anchors inside of an image, so all of them are sampled.
        (dict(allowed_border=0, pos_weight=2.0, sampler=ALL), {}),
        ({}, dict(loss_bbox=dict(type='SmoothL1Loss', beta=1 / 9, loss_weight=2.0))),
    ],
)
def test_losses_gradients_and_proposals_equal_those_of_mmdet(
    monkeypatch, counts, shapes, train, options
):
    same_draws(monkeypatch)
    size = 192, 256
    train = train | (dict(sampler=ALL) if shapes else {})
    ours, theirs = (
        computed(head(kind, train, **options), size, samples(counts, size, shapes))
        for kind in (BatchedRPNHead, RPNHead)
    )
    assert ours[0].keys() == theirs[0].keys()
    for name, wanted in theirs[0].items():
        assert relative_error(ours[0][name], wanted) < 1e-6 or wanted == ours[0][name] == 0, name
    for found, wanted in zip(ours[1], theirs[1], strict=True):
        assert relative_error(found, wanted) < 1e-5 or not wanted.any()
    assert_same_proposals(ours[2], theirs[2])


@pytest.mark.parametrize(
    'cfg',
    [dict(min_bbox_size=-1), dict(min_bbox_size=40), dict(min_bbox_size=1e4), dict(nms_pre=-1)],
)
def test_proposals_of_other_options_equal_those_of_mmdet(monkeypatch, cfg):
    same_draws(monkeypatch)
    size = 96, 128
    ours, theirs = (
        computed(head(kind), size, samples((3, 1), size), **cfg)[2]
        for kind in (BatchedRPNHead, RPNHead)
    )
    assert_same_proposals(ours, theirs)


@pytest.mark.parametrize(
    ('options', 'cfg'),
    [
        (dict(loss_bbox=dict(type='GIoULoss'), reg_decoded_bbox=True), {}),
        ({}, dict(nms=dict(type='soft_nms', iou_threshold=0.7), nms_pre=50)),
        ({}, dict(nms=dict(type='nms', iou_threshold=1.0))),  # keeps boxes that are left out
        # Objects and background have other labels in mmdet's losses of proposals.
        (dict(loss_cls=dict(type='CrossEntropyLoss', use_sigmoid=True, ignore_index=0)), {}),
    ],
)
def test_what_is_computed_by_mmdet_itself(monkeypatch, options, cfg):
    monkeypatch.setattr(BatchedRPNHead, '_losses', None)
    size = 96, 128
    losses, _, _ = computed(head(BatchedRPNHead, **options), size, samples((3, 1), size), **cfg)
    assert len(losses) == 2


def test_another_generator_gives_other_anchors(monkeypatch):
    same_draws(monkeypatch)
    size, found = (96, 128), []
    for kind in (BatchedRPNHead, RPNHead):
        module = head(kind)
        computed(module, size, samples((3, 1), size))
        options = dict(scales=[2], ratios=[0.5, 1, 2], strides=STRIDES)
        module.prior_generator = AnchorGenerator(**options)
        found.append(computed(module, size, samples((3, 1), size))[0])
    for name, wanted in found[1].items():
        assert relative_error(found[0][name], wanted) < 1e-6, name


def test_it_starts_less_than_half_of_the_operators_and_waits_in_nms_only():
    size = 320, 480
    counts, names = {}, []
    for kind in (RPNHead, BatchedRPNHead):
        module, batch = head(kind), samples((8, 8), size)
        names.append(module.state_dict().keys())
        x = maps(size)
        for _ in range(2):  # the anchors of a size are kept
            outs = module(x)
            module.forward = lambda _, outs=outs: outs
            with counted() as operations:
                module.loss_and_predict(x, batch, CFG.train_cfg.rpn_proposal)
        counts[kind] = operations
    ours, theirs = counts[BatchedRPNHead], counts[RPNHead]
    assert theirs.started.total() > 600 and theirs.waits.total() > 30
    assert 2 * ours.started.total() < theirs.started.total()
    assert dict(ours.waits) == {'nms': 2}
    assert names[0] == names[1]


def test_proposals_in_16_bits_are_computed_in_float32():
    size = 96, 128
    with torch.autocast('cpu', torch.bfloat16):
        losses, _, proposals = computed(head(BatchedRPNHead), size, samples((3, 1), size))
    assert all(loss.isfinite() for loss in losses.values())
    assert proposals[0].bboxes.dtype == proposals[0].scores.dtype == torch.float32
