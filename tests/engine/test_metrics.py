"""The metrics are pycocotools' and those of a plain count, on the same predictions."""

import json
import math

import numpy as np
import pytest
import torch
from mmengine.evaluator import Evaluator
from mmengine.registry import METRICS
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import xcit_mm  # noqa: F401  registers the metrics
from xcit_mm import environment
from xcit_mm.engine.hooks.report import write_metrics

NAMES = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l')


@pytest.fixture
def annotations(shapes_root):
    environment.require('xcit_mm.engine.coco_metric')
    return shapes_root / 'coco/annotations/instances_train2017.json'


def coco_metric(annotations, tmp_path, **kwargs):
    metric = METRICS.build(
        dict(
            type='CocoAPMetric',
            ann_file=str(annotations),
            metric=['bbox', 'segm'],
            outfile_prefix=str(tmp_path / 'predictions'),
            **kwargs,
        )
    )
    metric.dataset_meta = dict(classes=('circle', 'square', 'triangle'))
    return metric


def sample(coco: COCO, image_id: int, rng: np.random.Generator) -> dict:
    """Predictions near the truth: shifted, some of a wrong class, some missing, some doubled."""
    image = coco.loadImgs(image_id)[0]
    boxes, masks, labels, scores = [], [], [], []
    for annotation in coco.loadAnns(coco.getAnnIds(image_id)):
        for _ in range(rng.integers(0, 3)):
            dx, dy = rng.integers(-6, 7, size=2)
            x, y, w, h = annotation['bbox']
            boxes.append([x + dx, y + dy, x + dx + w, y + dy + h])
            masks.append(np.roll(coco.annToMask(annotation), (dy, dx), (0, 1)))
            wrong = rng.random() < 0.1
            labels.append((annotation['category_id'] - 1 + wrong) % 3)
            scores.append(rng.random())
    shape = (image['height'], image['width'])
    predicted = dict(
        bboxes=torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        masks=torch.from_numpy(np.array(masks).reshape(-1, *shape)).bool(),
        labels=torch.tensor(labels, dtype=torch.int64),
        scores=torch.tensor(scores, dtype=torch.float32),
    )
    return dict(img_id=image_id, ori_shape=shape, pred_instances=predicted)


def test_average_precisions_are_those_of_pycocotools(annotations, tmp_path):
    metric, coco = coco_metric(annotations, tmp_path), COCO(str(annotations))
    rng = np.random.default_rng(0)
    image_ids = coco.getImgIds()
    metric.process({}, [sample(coco, image_id, rng) for image_id in image_ids])
    metrics = metric.evaluate(len(image_ids))
    for kind in ('bbox', 'segm'):
        predictions = json.loads((tmp_path / f'predictions.{kind}.json').read_text())
        if kind == 'segm':
            for prediction in predictions:
                del prediction['bbox']  # or pycocotools takes the sizes of the boxes
        evaluation = COCOeval(coco, coco.loadRes(predictions), kind)
        evaluation.params.catIds = [1, 2, 3]
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        for name, expected in zip(NAMES, evaluation.stats[:6], strict=True):
            # mmdet rounds to three digits
            assert metrics[f'coco/{kind}_{name}'] == pytest.approx(expected, abs=5.001e-4)
        assert 0.2 < metrics[f'coco/{kind}_mAP'] < 0.9


@pytest.mark.parametrize(
    ('kwargs', 'names'),
    [
        ({}, NAMES),
        (dict(metric_items=['mAP_50', 'AR@100']), ('mAP_50', 'AR@100')),
        (dict(format_only=True), ()),
    ],
)
def test_where_nothing_is_detected_the_precision_is_zero(annotations, tmp_path, kwargs, names):
    metric, coco = coco_metric(annotations, tmp_path, **kwargs), COCO(str(annotations))
    image_ids = coco.getImgIds()
    for image_id in image_ids:
        image = coco.loadImgs(image_id)[0]
        shape = (image['height'], image['width'])
        nothing = dict(
            bboxes=torch.zeros(0, 4),
            masks=torch.zeros(0, *shape, dtype=torch.bool),
            labels=torch.zeros(0, dtype=torch.int64),
            scores=torch.zeros(0),
        )
        metric.process({}, [dict(img_id=image_id, ori_shape=shape, pred_instances=nothing)])
    metrics = metric.evaluate(len(image_ids))
    assert set(metrics) == {f'coco/{kind}_{name}' for kind in ('bbox', 'segm') for name in names}
    assert set(metrics.values()) <= {0.0}


def test_items_that_nobody_asked_for_are_not_made_up(annotations, tmp_path):
    metric, coco = coco_metric(annotations, tmp_path, metric_items=['mAP']), COCO(str(annotations))
    image_ids, rng = coco.getImgIds(), np.random.default_rng(0)
    metric.process({}, [sample(coco, image_id, rng) for image_id in image_ids])
    assert {'coco/bbox_mAP', 'coco/segm_mAP'} == set(metric.evaluate(len(image_ids)))


def test_predictions_without_labels_are_only_written(tmp_path):
    environment.require('xcit_mm.engine.iou_metric')
    metric = METRICS.build(
        dict(type='ClassIoUMetric', format_only=True, output_dir=str(tmp_path / 'labels'))
    )
    metric.dataset_meta = dict(classes=('background', 'circle'))
    predicted = dict(data=torch.zeros(1, 4, 4, dtype=torch.int64))
    metric.process({}, [dict(pred_sem_seg=predicted, img_path='a.jpg')])
    assert metric.evaluate(1) == {}
    assert (tmp_path / 'labels' / 'a.png').is_file()


def test_ious_are_those_of_a_plain_count(tmp_path):
    environment.require('xcit_mm.engine.iou_metric')
    classes = ('background', 'circle', 'square', 'triangle')
    metric = METRICS.build(dict(type='ClassIoUMetric', iou_metrics=['mIoU']))
    metric.dataset_meta = dict(classes=classes)
    rng = np.random.default_rng(0)
    confusion = np.zeros((4, 4), dtype=np.int64)  # label, prediction
    for _ in range(5):
        label = rng.choice([0, 1, 2, 255], size=(1, 17, 23))  # no triangle, some ignored
        wrong = rng.random(label.shape) < 0.3
        predicted = np.where(wrong, rng.integers(0, 3, label.shape), label % 255)
        for i, j in zip(label.ravel(), predicted.ravel(), strict=True):
            if i != 255:
                confusion[i, j] += 1
        metric.process(
            {},
            [
                dict(
                    pred_sem_seg=dict(data=torch.from_numpy(predicted)),
                    gt_sem_seg=dict(data=torch.from_numpy(label)),
                )
            ],
        )
    metrics = metric.evaluate(5)
    hits = confusion.diagonal()
    union = confusion.sum(0) + confusion.sum(1) - hits
    expected = [100 * hits[i] / union[i] for i in range(3)]
    assert [metric.class_iou[name] for name in classes[:3]] == pytest.approx(expected, rel=1e-6)
    assert math.isnan(metric.class_iou['triangle'])
    assert metrics['mIoU'] == pytest.approx(np.mean(expected), abs=5.001e-3)
    assert metrics['aAcc'] == pytest.approx(100 * hits.sum() / confusion.sum(), abs=5.001e-3)

    write_metrics(tmp_path / 'out.json', 'c.py', 'w.pth', metrics, Evaluator(metric))
    written = json.loads((tmp_path / 'out.json').read_text())
    assert written['metrics'] == metrics
    assert list(written['class_iou']) == list(classes)
    *occurring, triangle = written['class_iou'].values()
    assert occurring == pytest.approx(expected, rel=1e-6)
    assert triangle is None
