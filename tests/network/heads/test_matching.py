"""Compare batched matching and sampling with mmdet's assigner and sampler."""

import pytest
import torch
from mmengine.structures import InstanceData

from xcit_mm.base.environment import require_framework

require_framework('mmdet')

from mmdet.models.task_modules.assigners import MaxIoUAssigner  # noqa: E402
from mmdet.models.task_modules.samplers import RandomSampler  # noqa: E402

from xcit_mm.network.heads import matching  # noqa: E402
from xcit_mm.network.heads.matching import can_match, match, pad_objects  # noqa: E402
from xcit_mm.network.heads.random_samples import can_sample, sample  # noqa: E402
from xcit_mm.network.waits import counted  # noqa: E402

RPN = dict(pos_iou_thr=0.7, neg_iou_thr=0.3, min_pos_iou=0.3)


def boxes(number: int) -> torch.Tensor:
    corners = torch.randint(0, 30, (number, 2))
    return torch.cat((corners, corners + torch.randint(4, 30, (number, 2))), dim=1).float()


def objects(number: int) -> InstanceData:
    return InstanceData(bboxes=boxes(number), labels=torch.randint(0, 3, (number,)))


@pytest.mark.parametrize(
    'options',
    [
        RPN,
        dict(RPN, gt_max_assign_all=False),
        dict(pos_iou_thr=0.5, neg_iou_thr=0.5, min_pos_iou=0.5),
        dict(pos_iou_thr=0.5, neg_iou_thr=0.4, match_low_quality=False),
        dict(pos_iou_thr=0.6, neg_iou_thr=0.3),  # objects without any overlap
    ],
)
@pytest.mark.parametrize('at_once', [True, False])
@pytest.mark.parametrize('counts', [(4, 1, 0, 7), (0, 0), (3,)])
def test_boxes_match_as_in_mmdet(monkeypatch, options, at_once, counts):
    if not at_once:
        monkeypatch.setattr(matching, 'MAX_OVERLAPS', 0)
    assigner = MaxIoUAssigner(**options)
    assert can_match(assigner)
    images, common = [objects(count) for count in counts], boxes(200)
    valid = torch.rand(len(counts), 200) < 0.8
    of_images = torch.stack([boxes(200) for _ in counts])
    common[:3] = of_images[:, :3] = torch.tensor([200.0, 200, 210, 210])  # far from all objects
    padded, labels, exist = pad_objects(images)
    with counted() as operations:
        found = [
            match(assigner, common, None, padded, exist),
            match(assigner, of_images, None, padded, exist),
            match(assigner, common, valid, padded, exist),
        ]
    assert not operations.waits
    for i, image in enumerate(images):
        assert labels[i, : len(image)].equal(image.labels) and exist[i].sum() == len(image)
        for priors, assigned in zip((common, of_images[i]), found, strict=False):
            wanted = assigner.assign(InstanceData(priors=priors), image).gt_inds
            assert torch.equal(assigned[i], wanted)
        wanted = assigner.assign(InstanceData(priors=common[valid[i]]), image).gt_inds
        assert torch.equal(found[2][i][valid[i]], wanted)
        assert (found[2][i][~valid[i]] == -1).all()


@pytest.mark.parametrize(
    'options',
    [
        dict(neg_iou_thr=(0.1, 0.3)),
        dict(gpu_assign_thr=50),
        dict(perm_repeat_gt_cfg=dict()),
        dict(iou_calculator=dict(type='BboxOverlaps2D', dtype='fp16')),
    ],
)
def test_other_assigners_are_left_to_mmdet(options):
    assert not can_match(MaxIoUAssigner(**(RPN | options)))
    assert not can_sample(object())


@pytest.mark.parametrize('upper_bound', [-1, 1])
def test_samples_have_the_numbers_of_mmdet_and_are_uniform(upper_bound):
    sampler = RandomSampler(num=16, pos_fraction=0.25, neg_pos_ub=upper_bound)
    assigned = torch.full((3, 60), -1)
    assigned[0, :10], assigned[0, 10:40] = 2, 0  # more than enough of both
    assigned[1, 5:7], assigned[1, 20:30] = 1, 0  # all are taken
    drawn = torch.zeros(3, 60)
    for _ in range(1000):
        with counted() as operations:
            positive, negative = sample(sampler, assigned)
        assert not operations.waits
        numbers = [each.are_valid.sum(1).tolist() for each in (positive, negative)]
        assert numbers == ([[4, 2, 0], [4, 2, 0]] if upper_bound == 1 else [[4, 2, 0], [12, 10, 0]])
        for each in (positive, negative):
            drawn.scatter_add_(1, each.index, each.are_valid.float())
    assert drawn[assigned == -1].sum() == 0
    frequency = drawn[0] / 1000
    assert frequency[:10] == pytest.approx(torch.full((10,), 0.4), abs=0.08)
    expected = (4 if upper_bound == 1 else 12) / 30
    assert frequency[10:40] == pytest.approx(torch.full((30,), expected), abs=0.08)
