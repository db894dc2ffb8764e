"""Objects of large images: none is lost or found twice where tiles meet."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from helpers.planted_detector import SIDE, dot_detector, dots
from helpers.random_weights import DETECTOR
from mmengine.config import ConfigDict
from mmengine.structures import InstanceData
from pycocotools import mask as coco_mask

from xcit_mm import load_model
from xcit_mm.base.errors import UserError
from xcit_mm.large.maps import detect as detection
from xcit_mm.large.maps import rois
from xcit_mm.large.maps.objects import Objects
from xcit_mm.large.tokens.passes import Passes
from xcit_mm.large.tokens.shards import Shards
from xcit_mm.large.tokens.workspace import Workspace
from xcit_mm.predict.large.large_predictions import LargeDetections
from xcit_mm.predict.large.slices import _without_duplicates, slices_of


def centers_on_seams(size: tuple[int, int], tile: int) -> np.ndarray:
    """Return places on and next to each seam and each corner of tiles, far from each other."""
    step = 56  # 128 = 2 * 56 + 16: relative to its tile, each object lies elsewhere
    grid = [np.arange(24, n - 24, step) for n in size]
    grid = [np.where(abs((g + 32) % tile - 32) < 28, (g + 32) // tile * tile, g) for g in grid]
    grid = [g[(g > 20) & (g < n - 20)] for g, n in zip(grid, size, strict=True)]
    return np.stack(np.meshgrid(*grid, indexing='ij'), axis=-1).reshape(-1, 2)


def test_objects_on_seams_are_found_once(monkeypatch):
    monkeypatch.setattr(detection, 'TILE', 128)
    size = 640, 768
    centers = centers_on_seams(size, 128)
    on_seams = (centers % 128 == 0).any(1)
    assert len(centers) > 100  # more than max_per_img of any config
    assert on_seams.sum() > 50
    model = dot_detector()
    passes = Passes(model.backbone, dots(size, centers))
    passes.run()
    objects = detection.detect(model, passes, size, score_thr=0.5)
    found = (objects.boxes[:, 1::-1] + objects.boxes[:, :1:-1]) / 2
    distances = np.abs(found[:, None] - centers[None]).max(-1)
    assert len(found) == len(centers)
    assert (distances.min(0) <= 8).all()  # the anchors are 8 pixels apart
    assert (distances.min(1) <= 8).all()
    assert np.allclose(objects.boxes[:, 2:] - objects.boxes[:, :2], SIDE)
    assert (objects.labels == 0).all()


def test_boxes_far_from_the_corner_are_compared_exactly():
    boxes = torch.tensor([[1e5, 0, 1e5 + 10, 10], [1e5 + 3.3, 0, 1e5 + 13.3, 10]])
    found = InstanceData(
        bboxes=boxes, scores=torch.tensor([0.9, 0.8]), labels=torch.tensor([79, 79])
    )
    cfg = ConfigDict(nms=dict(type='nms', iou_threshold=0.5))  # they share 0.504
    objects = detection._suppressed([found], Shards(1), cfg)
    assert objects.labels.tolist() == [79]


@pytest.fixture(scope='module')
def without_limits(weights):
    """A Mask R-CNN that keeps every anchor: its objects are the same in any order of tiles."""
    options = {
        'model.test_cfg.rpn.nms_pre': -1,
        'model.test_cfg.rpn.max_per_img': 10**6,
        'model.test_cfg.rpn.nms.iou_threshold': 1.0,
        'model.test_cfg.rcnn.nms.iou_threshold': 1.0,
        'model.test_cfg.rcnn.score_thr': 0.0,
        'model.test_cfg.rcnn.max_per_img': 40,
    }
    return load_model(DETECTOR, weights[DETECTOR], 'cpu', options, full_size=True)


@pytest.fixture
def windows(monkeypatch) -> list[tuple]:
    """The RoI layers, the maps, the windows of the maps and the boxes that the layers get."""
    windows, window_around = [], rois.window_around

    def recorded(layer, inputs):
        windows.append((layer, inputs[0].level, *window_around(layer, inputs), inputs[1]))
        return windows[-1][2:4]

    monkeypatch.setattr(rois, 'window_around', recorded)
    return windows


def test_boxes_scores_and_masks_equal_those_of_the_whole_image(
    without_limits, image, monkeypatch, windows
):
    monkeypatch.setattr(detection, 'TILE', 64)
    expected = without_limits.predict(image)
    large = without_limits.predict_large(image, score_thr=float(expected.scores[-1]) - 1e-6)
    # Boxes reach beyond their tile: to the height of the image, 130 pixels, at stride 32.
    assert max(window.shape[2] / layer.spatial_scale for layer, _, window, *_ in windows) == 160
    n = len(expected)
    assert len(large) >= n == 40
    assert np.allclose(large.scores[:n], expected.scores, atol=1e-5)
    for box, label, mask in zip(expected.boxes, expected.labels, expected.masks, strict=True):
        same = (np.abs(large.boxes - box).max(1) < 1e-2) & (large.labels == label)
        assert same.any()
        window, part = large.masks[np.flatnonzero(same)[0]]
        complete = np.zeros_like(mask)
        complete[tuple(window)] = part
        assert (complete != mask).mean() < 1e-3
    annotation = large.to_coco(1)[0]
    window, part = large.masks[0]
    decoded = coco_mask.decode(annotation['segmentation'])
    assert np.array_equal(decoded[tuple(window)], part)
    assert decoded.sum() == part.sum() == annotation['area']
    huge = dataclasses.replace(large, size=(2**16, 2**16))  # COCO counts its pixels in 32 bits
    assert not huge.to_coco(1)[0].get('segmentation')
    assert large.draw().shape == expected.draw().shape
    above = large.above(float(expected.scores[9]))
    assert len(above) == len(above.masks) == 10


def test_objects_in_16_bits(without_limits, image, windows):
    image, dtype = image[:66, :98], torch.bfloat16
    expected = without_limits.predict_large(image, score_thr=0.3)
    windows.clear()
    narrow = dataclasses.replace(without_limits, streamed_dtype=dtype)
    objects = narrow.predict_large(image, score_thr=0.3)
    assert abs(len(objects) - len(expected)) <= 0.1 * len(expected)
    assert objects.scores[0] == pytest.approx(expected.scores[0], abs=0.05)
    assert {level.dtype for _, level, *_ in windows} == {dtype}
    places = torch.cat([boxes for *_, boxes in windows])[:, 1:]
    assert places.dtype == torch.float32
    assert not torch.equal(places, places.to(dtype).float())  # would be rounded
    assert {p.dtype for p in narrow.module.parameters()} == {torch.float32}


def test_duplicates_of_two_slices_are_dropped():
    boxes = np.array([[0, 0, 9, 9], [1, 0, 10, 9], [0, 0, 9, 9], [0, 0, 9, 9], [20, 0, 29, 9]])
    objects = Objects(boxes, np.array([0.5, 0.9, 0.4, 0.8, 0.7]), np.array([0, 0, 0, 1, 0]))
    slices = np.array([0, 1, 1, 1, 1])  # a slice may hold two objects in one place
    assert _without_duplicates(objects, slices[:, None]).tolist() == [1, 3, 4, 2]


def test_many_objects_are_compared_with_their_neighbors_only(tmp_path):
    """Each of 20,000 with all others would take minutes, also to place texts in the picture."""
    n = 20_000
    corners = np.stack(np.divmod(np.arange(n), 200), 1) * 20.0
    boxes = np.concatenate([corners, corners + 15], 1).repeat(2, 0)  # in two slices
    objects = Objects(boxes, np.linspace(1, 0, 2 * n), np.zeros(2 * n, int))
    slices = (corners // 400).repeat(2, 0) * 2
    slices[1::2] += 1
    kept = _without_duplicates(objects, slices)
    assert np.array_equal(kept, np.arange(0, 2 * n, 2))
    about = dict(size=(2000, 4000), georeference={}, workspace=Workspace())
    about |= dict(image=np.zeros((400, 400, 3), np.uint8), classes=('a',), palette=((1, 2, 3),))
    large = LargeDetections(**about, **vars(objects[kept]))
    assert large.draw().any()
    large.save(tmp_path, 'many')
    content = json.loads((tmp_path / 'objects/many.geojson').read_text())
    assert len(content['features']) == n


def test_heads_that_are_not_known_are_named(without_limits, image, monkeypatch):
    head = without_limits.module.roi_head
    other = type('OtherHead', (type(head),), dict(predict_bbox=None))
    monkeypatch.setattr(head, '__class__', other)
    with pytest.raises(UserError, match='which pixels of its maps OtherHead reads is not known'):
        without_limits.predict_large(image)


def test_slices_cover_an_image(without_limits, image):
    covered = np.zeros((130, 160), int)
    for window, middle in slices_of((130, 160), 96, 32):
        assert window.size == (96, 96)
        covered[tuple(middle)] += 1
    assert (covered == 1).all()
    objects = without_limits.predict_large(
        image, sliced=96, overlap=32, score_thr=0.1, batch_size=1
    )
    assert len(objects) > 0
    assert (np.diff(objects.scores) <= 0).all()
    assert len(objects.masks) == len(objects)
