"""Panoptic quality, against values computed by hand."""

import json

import numpy as np
import pytest
import torch
from mmengine.registry import METRICS
from PIL import Image

from xcit_mm.base import environment

CATEGORIES = [
    dict(id=7, name='cat', isthing=1),
    dict(id=9, name='dog', isthing=1),
    dict(id=92, name='sky', isthing=0),
]
CAT, DOG, SKY, NONE = range(4)
FIRST, SECOND = 1000, 2000  # objects


@pytest.fixture
def evaluate(tmp_path):
    """Evaluate images of 20 pixels: annotated segments and predicted ones, by their pixels."""
    environment.require('xcit_mm.train.metrics.panoptic_metric')

    def run(*images: tuple[dict, dict]) -> dict[str, float]:
        annotations, samples = [], []
        for image_id, (annotated, predicted) in enumerate(images, 1):
            ids, segments = np.zeros((2, 10), np.int64), np.full((2, 10), NONE)
            info = []
            for (id_, category_id, iscrowd), pixels in annotated.items():
                ids.flat[list(pixels)] = id_
                entry = dict(id=id_, category_id=category_id, iscrowd=iscrowd)
                info.append(entry | dict(bbox=[0, 0, 1, 1], area=len(pixels)))
            for segment, pixels in predicted.items():
                segments.flat[list(pixels)] = segment
            colors = np.stack([ids >> shift & 255 for shift in (0, 8, 16)], -1).astype(np.uint8)
            Image.fromarray(colors).save(tmp_path / f'{image_id}.png')
            entry = dict(image_id=image_id, file_name=f'{image_id}.png', segments_info=info)
            annotations.append(entry)
            prediction = dict(sem_seg=torch.from_numpy(segments)[None].int())
            samples.append(dict(img_id=image_id, pred_panoptic_seg=prediction))
        sizes = dict(width=10, height=2)
        images = [dict(id=i, file_name=f'{i}.jpg', **sizes) for i in range(1, len(images) + 1)]
        content = dict(images=images, annotations=annotations, categories=CATEGORIES)
        (tmp_path / 'a.json').write_text(json.dumps(content))
        cfg = dict(ann_file=str(tmp_path / 'a.json'), seg_prefix=str(tmp_path))
        metric = METRICS.build(dict(type='PanopticQualityMetric', **cfg))
        metric.process(None, samples)
        metrics = metric.evaluate(len(samples))
        return {name.removeprefix('coco_panoptic/'): value for name, value in metrics.items()}

    return run


def test_qualities_are_means_over_the_classes(evaluate):
    annotated = {
        (5, 7, 0): range(8),
        (300, 9, 0): range(8, 12),
        (70000, 92, 0): range(12, 18),
    }
    predicted = {
        CAT + FIRST: [*range(6), 18],  # 6 pixels in common, 8 in the union without the void
        CAT + SECOND: range(8, 11),  # wrong, and the dog is not found
        SKY: range(12, 18),
        DOG + FIRST: [19],  # in the void
    }
    assert evaluate((annotated, predicted)) == pytest.approx(
        dict(
            PQ=(50 + 0 + 100) / 3,
            SQ=(75 + 0 + 100) / 3,
            RQ=(200 / 3 + 0 + 100) / 3,
            PQ_th=25,
            SQ_th=75 / 2,
            RQ_th=100 / 3,
            PQ_st=100,
            SQ_st=100,
            RQ_st=100,
        )
    )


def test_matches_are_added_over_the_images(evaluate):
    exact = {(1, 7, 0): range(10)}, {CAT + FIRST: range(10)}
    missed = {(1, 7, 0): range(10), (2, 7, 0): range(10, 20)}, {CAT + FIRST: range(6)}
    metrics = evaluate(exact, missed)  # matches with IoU 1 and 0.6, and one object missed
    assert metrics['SQ'] == pytest.approx(80)
    assert metrics['RQ'] == pytest.approx(100 * 2 / 2.5)
    assert metrics['PQ'] == metrics['PQ_th'] == pytest.approx(64)
    assert metrics['PQ_st'] == 0  # there is none


CATS = {(1, 7, 0): range(10), (2, 7, 1): range(10, 20)}  # a cat and a crowd of cats
FOUND = {CAT + FIRST: range(10), CAT + SECOND: range(10, 15)}


@pytest.mark.parametrize(
    ('annotated', 'predicted', 'quality'),
    [
        ({(1, 7, 0): range(10)}, {CAT + FIRST: range(5)}, 0),  # half an object is no match
        (CATS, FOUND, 100),  # in a crowd of its class a prediction does not count
        (CATS, FOUND | {DOG + FIRST: range(15, 20)}, 50),
    ],
)
def test_what_matches(evaluate, annotated, predicted, quality):
    assert evaluate((annotated, predicted))['PQ'] == quality
