"""Several processes that share an image, in prediction and in training, against a single one."""

import copy

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers import assert_same_gradients, network_error, randomize, relative_error
from helpers.planted_detector import dot_detector, dots
from helpers.processes import in_processes
from helpers.segmentors import build
from helpers.small_xcit import small_xcit
from torch import nn

from xcit_mm import stream
from xcit_mm.base.errors import ArgumentError, UserError
from xcit_mm.base.progress import Progress
from xcit_mm.large.maps import detect as detection
from xcit_mm.large.maps import segment as segmentation
from xcit_mm.large.shared_images import shared_images
from xcit_mm.large.tokens.passes import Passes
from xcit_mm.large.tokens.shards import Shards
from xcit_mm.predict.large.predict_large import LargeOptions, predict_large

SIZE = 184, 131  # of 23 rows of tokens for patch size 8, in blocks of 5 or 6


@pytest.mark.parametrize(('count', 'patch_size'), [(3, 16), (4, 8), (2, 4)])
def test_maps_equal_those_of_one_process(count, patch_size, tmp_path):
    backbone = small_xcit(patch_size).eval()
    randomize(backbone)
    images = {dtype: torch.randn(3, *SIZE, dtype=dtype) for dtype in (torch.float64, torch.float32)}
    with torch.no_grad():
        expected = {dtype: backbone.to(dtype)(x[None]) for dtype, x in images.items()}

    def compare(rank: int) -> None:
        for dtype in (torch.float64, torch.float32):
            tolerance = network_error(backbone, dtype)
            for rows in (1, None):
                maps = stream(backbone.to(dtype), images[dtype], rows=rows)
                for value, whole in zip(maps, expected[dtype], strict=True):
                    H = whole.shape[2]
                    own = whole[0, :, H * rank // count : H * (rank + 1) // count]
                    assert relative_error(torch.from_numpy(value), own) <= tolerance

    in_processes(count, compare, tmp_path)


def test_predictions_equal_those_of_one_process(
    full_size_segmentor, full_size_detector, image, tmp_path, monkeypatch
):
    monkeypatch.setattr(detection, 'TILE', 64)
    segmentor, detector = full_size_segmentor, full_size_detector
    labels = segmentor.predict_large(image, with_scores=True)
    scores = detector.predict(image).scores
    score_thr = float(scores[30:32].mean())
    objects = detector.predict_large(image, score_thr=score_thr)
    local = segmentor.predict_large(image, statistics_window=64)

    def compare(rank: int) -> None:
        shared = [
            segmentor.predict_large(image, with_scores=True),
            segmentor.predict_large(image, memory=0, store=tmp_path / 'store'),
            detector.predict_large(image, score_thr=score_thr - 1e-5),
            segmentor.predict_large(image, statistics_window=64),
        ]
        with pytest.raises(UserError, match='slices are predicted by a single process'):
            segmentor.predict_large(image, sliced=64, overlap=0)
        if rank:
            assert shared == [None] * 4
            return
        assert np.array_equal(shared[0].labels, labels.labels)
        assert np.abs(shared[0].scores.astype(int) - labels.scores).max() <= 1
        assert np.array_equal(shared[1].labels, labels.labels)
        for box, label, (window, mask) in zip(
            objects.boxes, objects.labels, objects.masks, strict=True
        ):
            same = (np.abs(shared[2].boxes - box).max(1) < 1e-2) & (shared[2].labels == label)
            assert same.any()
            other_window, other = shared[2].masks[np.flatnonzero(same)[0]]
            assert window == other_window
            assert (mask != other).mean() < 1e-2
        assert np.array_equal(shared[3].labels, local.labels)

    in_processes(3, compare, tmp_path)


def test_pooled_maps_equal_those_of_one_process(tmp_path):
    model = build('upernet_xcit_t12_8_160k', patch_size=8)
    image = torch.randn(3, 217, 131)

    def label() -> torch.Tensor:
        passes = Passes(model.backbone, image)
        passes.run()
        found = segmentation.label(model, passes, (217, 131), dict(labels=torch.uint8))
        return torch.from_numpy(found['labels'].array())

    expected = label()

    def compare(rank: int) -> None:
        own = slice(217 * rank // 3, 217 * (rank + 1) // 3)
        assert (label() != expected[own]).float().mean() < 1e-3

    in_processes(3, compare, tmp_path)


class Failing(Progress):
    """Ends the process of one rank before the ninth pass."""

    def __init__(self, rank: int) -> None:
        self.rank, self.passes = rank, 0

    def __call__(self, tiles, what):
        self.passes += 1
        if self.rank == 1 and self.passes == 9:
            raise RuntimeError('planted')
        yield from tiles


def test_several_processes_continue_together(segmentor, image, tmp_path):
    options = LargeOptions(memory=0, store=tmp_path / 'store')
    expected = segmentor.predict_large(image).labels

    def fail(rank: int) -> None:
        with pytest.raises((RuntimeError, UserError), match=r'planted|another process has ended'):
            predict_large(segmentor, image, options, Failing(rank))

    def finish(rank: int) -> None:
        progress = Failing(0)
        result = predict_large(segmentor, image, options, progress)
        assert progress.passes < 8  # five layers and the rows of labels
        assert rank or np.array_equal(result.labels, expected)

    for i, function in enumerate((fail, finish)):
        (tmp_path / str(i)).mkdir()
        in_processes(2, function, tmp_path / str(i))


def test_fewer_tiles_than_processes(full_size_detector, image, tmp_path):
    detector = full_size_detector
    objects = detector.predict_large(image, score_thr=0.3)

    def compare(rank: int) -> None:
        shared = detector.predict_large(image, score_thr=0.3)
        assert shared is None if rank else len(shared) == len(objects)
        detector.module.roi_head.mask_head = None
        shared = detector.predict_large(image, score_thr=0.3)
        assert shared is None if rank else shared.masks is None

    in_processes(2, compare, tmp_path)


def test_objects_between_processes_are_found_once(tmp_path, monkeypatch):
    monkeypatch.setattr(detection, 'TILE', 128)
    model, size = dot_detector(), (512, 256)
    centers = np.array([(y, x) for y in (128, 250, 256 + 56, 384) for x in (30, 128, 220)])
    image = dots(size, centers)

    def compare(rank: int) -> None:
        passes = Passes(model.backbone, image)
        passes.run()
        objects = detection.detect(model, passes, size, score_thr=0.5)
        y = objects.boxes[:, 1::2].mean(1)
        assert (y // 256 == rank).all()
        numbers = passes.shards.gather(len(objects))
        assert rank or sum(numbers) == len(centers)

    in_processes(2, compare, tmp_path)


def test_a_process_that_ends_is_named(tmp_path):
    def compare(rank: int) -> None:
        shards = Shards(8)
        if rank == 0:
            with pytest.raises(UserError, match='another process has ended'):
                shards.barrier()

    in_processes(2, compare, tmp_path)


@pytest.mark.parametrize(
    ('options', 'patch_size'),
    [({}, 8), ({}, 4), (dict(drop_path_rate=0.3, with_cp=True), 16), (dict(frozen_stages=1), 16)],
)
def test_a_training_step_equals_that_of_one_process(options, patch_size, tmp_path):
    heights = (64, 64, 56) if patch_size < 16 else (96, 88)
    backbone = small_xcit(patch_size, **options).double().train()
    randomize(backbone)
    images = torch.randn(2, 3, *SIZE, dtype=torch.float64)
    single = copy.deepcopy(backbone)
    torch.manual_seed(1)
    expected = single(images)
    cotangents = [torch.randn_like(m) for m in expected]
    sum((m * c).sum() for m, c in zip(expected, cotangents, strict=True)).backward()
    names, parameters = zip(
        *((n, p) for n, p in single.named_parameters() if p.grad is not None), strict=True
    )

    def compare(rank: int) -> None:
        top = sum(heights[:rank])
        torch.manual_seed(1 + rank)  # the first process draws for all
        with shared_images(backbone):
            maps = backbone(images[:, :, top : top + heights[rank]])
        loss = 0.0
        for m, whole, cotangent, stride in zip(
            maps, expected, cotangents, (4, 8, 16, 32), strict=True
        ):
            own = slice(top // stride, top // stride + m.shape[2])
            assert relative_error(m, whole[:, :, own]) <= 1e-10
            loss = loss + (m * cotangent[:, :, own]).sum()
        loss.backward()
        gradients = [backbone.get_parameter(name).grad for name in names]
        for gradient in gradients:
            dist.all_reduce(gradient)
        assert_same_gradients(names, gradients, [p.grad for p in parameters], 1e-10)
        for name, value in single.named_buffers():
            torch.testing.assert_close(backbone.get_buffer(name), value)

    in_processes(len(heights), compare, tmp_path)


def test_float32_gradients_and_blocks_that_cannot_be_computed(tmp_path):
    backbone = small_xcit(16).train()
    images = torch.randn(1, 3, 128, 96)
    single = copy.deepcopy(backbone)
    sum(m.square().mean() for m in single(images)).backward()
    whole, numbers = copy.deepcopy(single)(images)[0], [m.numel() for m in single(images)]

    def compare(rank: int) -> None:
        group = dist.new_group([1, 2])  # the first process has no part in it
        if rank == 0:
            return
        # PyTorch refuses these layers on a CPU; shared rows compute the statistics of the group.
        shared = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(backbone))
        with shared_images(shared, group):
            maps = shared(images[:, :, 64 * (rank - 1) : 64 * rank])
            assert relative_error(maps[0], whole[:, :, 16 * (rank - 1) : 16 * rank]) <= 1e-5
        with shared_images(backbone, group):
            maps = backbone(images[:, :, 64 * (rank - 1) : 64 * rank])
            sum(m.square().sum() / n for m, n in zip(maps, numbers, strict=True)).backward()
            names, wanted = zip(*((n, p.grad) for n, p in single.named_parameters()), strict=True)
            gradients = [p.grad for p in backbone.parameters()]
            for gradient in gradients:
                dist.all_reduce(gradient, group=group)
            assert_same_gradients(names, gradients, wanted, 1e-5)
            with pytest.raises(ArgumentError, match=r'blocks of \[48, 80\] rows cannot share'):
                backbone(images[:, :, :48] if rank == 1 else images[:, :, 48:])
            with pytest.raises(ArgumentError, match='8x96 pixels has no map at stride 32'):
                backbone(images[:, :, :8] if rank == 1 else images[:, :, 8:])
            hook = backbone.blocks[0].attn.qkv.register_forward_hook(lambda *_: None)
            with pytest.raises(ArgumentError, match='a Linear with hooks, or of another class'):
                backbone(images[:, :, 64 * (rank - 1) : 64 * rank])
            hook.remove()
        assert backbone(images)[0].shape == (1, 32, 32, 24)

    in_processes(3, compare, tmp_path)
