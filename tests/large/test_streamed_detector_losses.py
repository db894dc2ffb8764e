"""Losses of detectors, tile by tile, against mmdet's losses of the same maps."""

import copy
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers import assert_same_gradients
from helpers.detectors import NARROW, build, compute_losses_in_mmdet
from helpers.processes import in_processes
from mmdet.models.task_modules.assigners import AssignResult, MaxIoUAssigner
from mmdet.structures import DetDataSample
from mmdet.structures.mask import PolygonMasks
from mmengine.structures import InstanceData
from torch import Tensor, nn

from xcit_mm.base.errors import UserError
from xcit_mm.base.geometry import Window, evenly_cut, whole
from xcit_mm.large.losses import detect_loss
from xcit_mm.large.losses.detect_loss import losses, require_trainable_detector
from xcit_mm.large.maps.streamed_maps import Pyramid
from xcit_mm.large.tokens.backward import TrainedPasses
from xcit_mm.large.tokens.tape import Tape

SIZE = 150, 203
HARD = 'Faster R-CNN with hard examples'
EVEN = [(0, 64), (64, 160)]
BOXES = [[3, 5, 40, 60], [50, 20, 90, 45], [58, 60, 76, 140], [100, 90, 190, 147], [90, 3, 99, 14]]


def sample_of(boxes: Sequence[Sequence[float]], size: tuple[int, int] = SIZE) -> DetDataSample:
    """Return objects whose masks are diamonds in their boxes."""
    sample = DetDataSample(metainfo=dict(img_shape=size, pad_shape=size, scale_factor=(1.0, 1.0)))
    masks = [
        [np.array([(x + u) / 2, y, u, (y + v) / 2, (x + u) / 2, v, x, (y + v) / 2], float)]
        for x, y, u, v in boxes
    ]
    sample.gt_instances = InstanceData(
        bboxes=torch.tensor(boxes, dtype=torch.float32).view(-1, 4),
        labels=torch.arange(len(boxes)) % 3,
        masks=PolygonMasks(masks, *size),
    )
    sample.ignored_instances = InstanceData(
        bboxes=torch.tensor([[120.0, 20, 180, 70]]), labels=torch.zeros(1, dtype=torch.long)
    )
    return sample


@pytest.fixture(scope='module')
def models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    models = {name: build(name) for name in NARROW}
    hard = {'train_cfg.rcnn.sampler.type': 'OHEMSampler'}
    models[HARD] = build('faster_rcnn_xcit_n12_16_small', **hard)
    return {name: model.double() for name, model in models.items()}


def passes_of(model: nn.Module, size: tuple[int, int] = SIZE) -> TrainedPasses:
    image = torch.randn(3, *size, generator=torch.Generator().manual_seed(2))
    passes = TrainedPasses(model.backbone, image.to(next(model.parameters()).dtype))
    passes.run()
    return passes


def streamed(
    model: nn.Module, passes: TrainedPasses, sample: DetDataSample, size: tuple[int, int] = SIZE
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Return the losses and the gradients of the tokens of this process."""
    gradients = passes.gradients()
    model.zero_grad()
    found = losses(model, Pyramid(passes, Tape(), gradients), passes, sample, size)
    for gradient in gradients:
        gradient.settle()
    return found, [torch.from_numpy(gradient.file.array()) for gradient in gradients]


def maps_of(passes: TrainedPasses) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tokens of the levels as leaves, and the maps that PyTorch computes from them."""
    tokens, maps = [], []
    for index, _, resize, norm in passes.backbone.levels:
        tokens.append(passes.store(index + 1).read(whole(passes.size)).requires_grad_())
        maps.append(norm(resize(tokens[-1].permute(2, 0, 1)[None])))
    return tokens, maps


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize('boxes', [BOXES, []], ids=['objects', 'no object'])
@pytest.mark.parametrize('name', [*NARROW, HARD])
def test_an_image_of_one_tile_has_the_loss_of_mmdet(name, boxes, models, monkeypatch):
    model = models[name]
    require_trainable_detector(model)
    passes, sample = passes_of(model), sample_of(boxes)
    tokens, maps = maps_of(passes)
    with monkeypatch.context() as patched:
        patched.setattr(model, 'extract_feat', lambda _: model.neck(maps))
        compute_losses_in_mmdet(patched)
        torch.manual_seed(3)
        expected = model.loss(None, [copy.deepcopy(sample)])
    model.zero_grad()
    total, expected = model.parse_losses(expected)
    total.backward()
    wanted = gradients_of(model)
    torch.manual_seed(3)
    found, of_tokens = streamed(model, passes, sample)
    assert_same_losses(found, expected)
    assert_gradients(model, of_tokens, wanted, tokens)


def assert_same_losses(
    found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-9
) -> None:
    assert found.keys() == expected.keys() - {'loss'}
    for name, value in found.items():
        assert value.item() == pytest.approx(expected[name].item(), rel=tolerance, abs=1e-12), name


def assert_gradients(
    model: nn.Module,
    of_tokens: list[Tensor],
    wanted: dict[str, Tensor],
    tokens: list[Tensor],
    tolerance: float = 1e-9,
) -> None:
    gradients = gradients_of(model)
    assert gradients.keys() == wanted.keys()
    assert_same_gradients(wanted, gradients.values(), wanted.values(), tolerance)
    for value, leaf in zip(of_tokens, tokens, strict=True):  # RetinaNet does not use the first one
        wanted = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        assert_same_gradients(['tokens'], [value], [wanted], tolerance)


def tiles_of(side: int, unit: int) -> list[Window]:
    size = [-(-n // 16) * 16 for n in SIZE]
    height, width = (-(-n // unit) * unit for n in size)
    spans = [evenly_cut(n, side, unit) for n in (height, width)]
    return [Window(rows, columns) for rows in spans[0] for columns in spans[1]]


def assign_in_tile(
    assigner: MaxIoUAssigner, is_own: Tensor, overlaps: Tensor, labels: Tensor
) -> AssignResult:
    """Assign anchors to objects (objects, anchors), and the best anchors to own objects."""
    if not len(overlaps):  # a tile without objects
        return assigner.assign_wrt_overlaps(overlaps, labels)
    gt_inds = torch.full(overlaps.shape[1:], -1)
    best, index = overlaps.max(0)
    gt_inds[(best >= 0) & (best < assigner.neg_iou_thr)] = 0
    gt_inds = torch.where(best >= assigner.pos_iou_thr, index + 1, gt_inds)
    for i in is_own.nonzero()[:, 0]:
        if overlaps[i].max() >= assigner.min_pos_iou:
            gt_inds[overlaps[i] == overlaps[i].max()] = i + 1
    labels = torch.where(gt_inds > 0, labels[gt_inds.clamp(min=1) - 1], -1)
    return AssignResult(len(overlaps), gt_inds, best, labels)


def mean_over_tiles(
    model: nn.Module,
    maps: Sequence[Tensor],
    sample: DetDataSample,
    tiles: Sequence[Window],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, Tensor]:
    """Compute the losses of each tile with mmdet's code from the outputs for the whole image.

    Anchors outside the tile are marked as not valid, and get no scores.
    """
    with_rois, maps = hasattr(model, 'roi_head'), model.neck(maps)
    head = model.rpn_head if with_rois else model.bbox_head
    outputs, get_anchors, total = head(maps), head.get_anchors, {}
    strides = [stride[0] for stride in head.prior_generator.strides]
    for tile in tiles:
        inside = [
            torch.outer(
                *(
                    (torch.arange(n) * stride >= span.start)
                    & (torch.arange(n) * stride < span.stop)
                    for n, span in zip(level.shape[2:], tile, strict=True)
                )
            )
            for level, stride in zip(outputs[0], strides, strict=True)
        ]
        numbers = head.prior_generator.num_base_priors

        def anchors_of_tile(*args, inside=inside, numbers=numbers, **kwargs):
            anchors, (flags,) = get_anchors(*args, **kwargs)
            of_levels = zip(flags, inside, numbers, strict=True)
            return anchors, [[f & i.flatten().repeat_interleave(n) for f, i, n in of_levels]]

        (left, right), (top, bottom) = ((s.start, s.stop) for s in tile[::-1])
        boxes = sample.gt_instances.bboxes
        x, y, u, v = boxes.T
        touches = (x < right) & (u > left) & (y < bottom) & (v > top)
        of_tile = DetDataSample(metainfo=sample.metainfo)
        of_tile.gt_instances = sample.gt_instances[touches]
        of_tile.ignored_instances = sample.ignored_instances
        class_agnostic = copy.deepcopy(of_tile)
        class_agnostic.gt_instances.labels *= not with_rois
        is_own = ((x + u) / 2 >= left) & ((x + u) / 2 < right)
        is_own &= ((y + v) / 2 >= top) & ((y + v) / 2 < bottom)
        assign = partial(assign_in_tile, copy.copy(head.assigner), is_own[touches])
        known = [class_agnostic.gt_instances], [sample.metainfo], [sample.ignored_instances]
        with detect_loss._drawn_from(seed, tile), monkeypatch.context() as patched:
            patched.setattr(head, 'get_anchors', anchors_of_tile)
            patched.setattr(head.assigner, 'assign_wrt_overlaps', assign)
            parts = head.loss_by_feat(*outputs, *known)
            if with_rois:
                of_levels = zip(outputs[0], inside, strict=True)
                scores = [torch.where(i, level, -1e9) for level, i in of_levels]
                cfg = model.train_cfg.rpn_proposal
                options = dict(batch_img_metas=[sample.metainfo], cfg=cfg)
                (proposals,) = head.predict_by_feat(scores, outputs[1], **options)
                proposals = proposals[proposals.scores > 0]
                parts |= model.roi_head.loss(maps, [proposals], [of_tile])
        for name, value in model.parse_losses(parts)[1].items():
            total[name] = total.get(name, 0.0) + value / len(tiles)
    return total


@pytest.mark.parametrize('name', ['retinanet_xcit_t12_16_1x', 'mask_rcnn_xcit_n12_16_shapes'])
def test_the_loss_is_the_mean_over_tiles(name, models, monkeypatch):
    monkeypatch.setattr(detect_loss, 'TILE', 128)
    model, sample = models[name], sample_of(BOXES)
    head = model.rpn_head if hasattr(model, 'rpn_head') else model.bbox_head
    passes = passes_of(model)
    tiles = tiles_of(128, max(head.prior_generator.strides)[0])
    assert len(tiles) == 4
    tokens, maps = maps_of(passes)
    monkeypatch.setattr(detect_loss, '_common_seed', lambda shards: 7)
    model.zero_grad()
    expected = mean_over_tiles(model, maps, sample, tiles, 7, monkeypatch)
    expected['loss'].backward()
    wanted = gradients_of(model)
    found, of_tokens = streamed(model, passes, sample)
    # mmdet computes anchors and some of their losses in float32.
    assert_same_losses(found, expected, 1e-5)
    assert_gradients(model, of_tokens, wanted, tokens, 1e-5)


def test_an_object_gets_its_best_anchor_only_in_the_tile_of_its_center(models):
    assigner = models['retinanet_xcit_t12_16_1x'].bbox_head.assigner
    # The first object belongs to the tile. Of the others, one matches an anchor well.
    overlaps = torch.tensor([[0.2, 0.1, 0.0, 0.0], [0.3, 0.1, 0.1, 0.6], [0.0, 0.3, 0.2, 0.1]])
    of_tile = detect_loss._assigner_of_tile(assigner, torch.tensor([True, False, False]))
    found = of_tile.assign_wrt_overlaps(overlaps, torch.tensor([5, 6, 7]))
    assert found.gt_inds.tolist() == [1, 0, 0, 2]
    assert found.labels.tolist() == [5, -1, -1, 6]
    alone = assigner.assign_wrt_overlaps(overlaps, torch.tensor([5, 6, 7]))
    assert alone.gt_inds.tolist() == [1, 3, 0, 2]


def test_each_object_has_its_center_in_one_tile_and_is_known_in_all_that_it_touches():
    boxes = torch.tensor(
        [[60.0, 60, 68, 69], [10, 10, 20, 30], [0, 120, 203, 130], [190, 140, 300, 400], [-9] * 4]
    )
    tiles = [Window(slice(a, b), slice(c, d)) for a, b in EVEN for c, d in EVEN]
    places = [detect_loss._places(boxes, tile, (160, 160)) for tile in tiles]
    touches, is_own = (torch.stack(flags).int() for flags in zip(*places, strict=True))
    assert touches.tolist() == [
        [1, 1, 0, 0, 1],
        [1, 0, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 0, 1, 1, 0],
    ]
    assert is_own.argmax(0).tolist() == [3, 0, 3, 3, 0]
    assert is_own.sum(0).tolist() == [1] * 5


def test_losses_do_not_depend_on_the_number_of_processes(models, monkeypatch, tmp_path):
    """Objects and proposals reach into the rows of the other process."""
    monkeypatch.setattr(detect_loss, 'TILE', 64)
    names = ['retinanet_xcit_t12_16_1x', 'cascade_mask_rcnn_xcit_n12_16_shapes']
    size, sample = (240, 120), sample_of(BOXES, (240, 120))
    expected = {}
    for name in names:
        torch.manual_seed(3)
        found, of_tokens = streamed(models[name], passes_of(models[name], size), sample, size)
        expected[name] = found, of_tokens, gradients_of(models[name])

    def compare(rank: int) -> None:
        for name in names:
            model, (wanted_losses, wanted_tokens, wanted) = models[name], expected[name]
            passes = passes_of(model, size)
            torch.manual_seed(3 + rank)  # the first process draws for all
            found, of_tokens = streamed(model, passes, sample, size)
            assert_same_losses(found, wanted_losses)
            for value, of_image in zip(of_tokens, wanted_tokens, strict=True):
                own = of_image[passes.shards.rows]
                assert (value - own).norm() <= 1e-9 * of_image.norm()
            gradients = [model.get_parameter(key).grad for key in wanted]
            gradients = [
                torch.zeros_like(w) if g is None else g
                for g, w in zip(gradients, wanted.values(), strict=True)
            ]
            for gradient in gradients:
                dist.all_reduce(gradient)
            assert_same_gradients(wanted, gradients, wanted.values(), 1e-9)

    in_processes(2, compare, tmp_path)


def test_losses_in_16_bits(models):
    """Coordinates and losses are computed in float32, and every parameter gets its gradient."""
    name = 'cascade_mask_rcnn_xcit_n12_16_shapes'
    torch.manual_seed(3)
    expected, _ = streamed(models[name], passes_of(models[name]), sample_of(BOXES))
    wanted = gradients_of(models[name])
    model = copy.deepcopy(models[name]).float()
    torch.manual_seed(3)
    with torch.autocast('cpu', torch.bfloat16):
        found, _ = streamed(model, passes_of(model), sample_of(BOXES))
    assert found.keys() == expected.keys()
    for key in ('loss_rpn_cls', 'loss_rpn_bbox', 's0.loss_cls', 's0.loss_mask'):
        assert found[key].item() == pytest.approx(expected[key].item(), rel=0.1), key
    assert gradients_of(model).keys() == wanted.keys()
    assert all(g.isfinite().all() for g in gradients_of(model).values())


def test_frozen_heads_pass_gradients_on(models):
    model = copy.deepcopy(models['mask_rcnn_xcit_n12_16_shapes'])
    model.rpn_head.requires_grad_(False)
    model.roi_head.requires_grad_(False)
    _, of_tokens = streamed(model, passes_of(model), sample_of(BOXES))
    names = {name.split('.')[0] for name in gradients_of(model)}
    assert names == {'backbone', 'neck'}
    assert all(value.abs().sum() > 0 for value in of_tokens)


@pytest.mark.parametrize(
    ('name', 'path', 'method'),
    [
        ('mask_rcnn_xcit_n12_16_shapes', 'roi_head', 'mask_loss'),
        ('mask_rcnn_xcit_n12_16_shapes', 'rpn_head', 'loss_by_feat'),
        ('retinanet_xcit_t12_16_1x', 'bbox_head', 'get_targets'),
        ('retinanet_xcit_t12_16_1x', '', 'loss'),
    ],
)
def test_losses_that_are_not_known_are_named(models, monkeypatch, name, path, method):
    part = models[name].get_submodule(path)
    monkeypatch.setattr(part, '__class__', type('OtherPart', (type(part),), {method: None}))
    with pytest.raises(UserError, match='the losses of OtherPart read is not known'):
        require_trainable_detector(models[name])
