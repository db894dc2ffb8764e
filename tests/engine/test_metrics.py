"""The metrics are pycocotools' and those of a plain count, on the same predictions."""

import json
import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from mmengine.evaluator import Evaluator
from mmengine.registry import METRICS
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import xcit_mm  # noqa: F401  registers the metrics
from xcit_mm import environment
from xcit_mm.engine.hooks.report import write_metrics

NAMES = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l')
KINDS = ('bbox', 'segm')


@pytest.fixture
def coco(shapes_root) -> COCO:
    environment.require('xcit_mm.engine.coco_metric')
    path = shapes_root / 'coco/annotations/instances_train2017.json'
    content = COCO(str(path))
    content.path = path
    return content


def evaluate(coco: COCO, predict, **kwargs) -> dict[str, float]:
    """Evaluate what ``predict(coco, image_id, shape)`` returns for each image."""
    cfg = dict(type='CocoAPMetric', ann_file=str(coco.path), metric=list(KINDS), **kwargs)
    metric = METRICS.build(cfg)
    metric.dataset_meta = dict(classes=('circle', 'square', 'triangle'))
    for image in coco.loadImgs(coco.getImgIds()):
        shape = image['height'], image['width']
        boxes, masks, labels, scores = predict(coco, image['id'])
        predicted = dict(
            bboxes=torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
            masks=torch.from_numpy(np.array(masks).reshape(-1, *shape)).bool(),
            labels=torch.tensor(labels, dtype=torch.int64),
            scores=torch.tensor(scores, dtype=torch.float32),
        )
        metric.process({}, [dict(img_id=image['id'], ori_shape=shape, pred_instances=predicted)])
    return metric.evaluate(len(coco.getImgIds()))


def near_the_truth(coco: COCO, image_id: int) -> tuple[list, list, list, list]:
    """Predict shifted objects, some of a wrong class, some missing, some doubled."""
    rng = np.random.default_rng(image_id)
    boxes, masks, labels, scores = [], [], [], []
    for annotation in coco.loadAnns(coco.getAnnIds(image_id)):
        for _ in range(rng.integers(0, 3)):
            dx, dy = rng.integers(-6, 7, size=2)
            x, y, w, h = annotation['bbox']
            boxes.append([x + dx, y + dy, x + dx + w, y + dy + h])
            masks.append(np.roll(coco.annToMask(annotation), (dy, dx), (0, 1)))
            labels.append((annotation['category_id'] - 1 + (rng.random() < 0.1)) % 3)
            scores.append(rng.random())
    return boxes, masks, labels, scores


def nothing(coco: COCO, image_id: int) -> tuple[list, list, list, list]:
    return [], [], [], []


def test_average_precisions_are_those_of_pycocotools(coco, tmp_path):
    metrics = evaluate(coco, near_the_truth, outfile_prefix=str(tmp_path / 'predictions'))
    for kind in KINDS:
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


HEIGHT, WIDTH = 120, 160
CATEGORIES = (7, 1, 4, 9)  # the last has no objects


def run_lengths(mask: np.ndarray) -> dict:
    encoded = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    return {**encoded, 'counts': encoded['counts'].decode()}


def draw(rng: np.random.Generator) -> tuple[list[float], np.ndarray]:
    """Return a box of any of COCO's three sizes, and a mask in it."""
    size = np.exp(rng.uniform(np.log(3), np.log(115), 2))
    left, top = rng.uniform(0, (WIDTH, HEIGHT) - size)
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[int(top) : int(top + size[1]) + 1, int(left) : int(left + size[0]) + 1] = True
    mask[int(top) : int(top + size[1] / 2), int(left) : int(left + size[0] / 2)] = False
    return [float(np.float32(x)) for x in (left, top, *size)], mask


def crowded_scenes(seed: int) -> tuple[dict, list[dict]]:
    """Draw annotations with crowds and empty images, and predictions, up to 150 in an image.

    Half of the scores are equal to others.
    """
    rng = np.random.default_rng(seed)
    images, annotations, predictions = [], [], []

    def predict(image: int, category: int, box: list[float], mask: np.ndarray) -> None:
        score = float(rng.choice([rng.random(), rng.integers(1, 5) / 5]))
        predicted = dict(image_id=image, category_id=category, bbox=box, score=score)
        predictions.append({**predicted, 'segmentation': run_lengths(mask)})

    for image in range(1, 16):
        images.append(dict(id=image, height=HEIGHT, width=WIDTH, file_name=f'{image}.jpg'))
        for _ in range(rng.integers(0, 10) if image % 4 else 0):
            (box, mask), category = draw(rng), int(rng.choice(CATEGORIES[:3]))
            is_crowd = bool(rng.random() < 0.2)
            segmentation = run_lengths(mask)
            if not is_crowd and rng.random() < 0.5:
                x, y, w, h = box
                segmentation = [[x, y, x + w, y, x + w, y + h, x, y + 0.8 * h]]
            annotations.append(
                dict(
                    id=len(annotations) + 1,
                    image_id=image,
                    category_id=category,
                    bbox=box,
                    area=float(mask.sum()),
                    iscrowd=int(is_crowd),
                    segmentation=segmentation,
                )
            )
            for shift in rng.integers(-5, 6, size=(rng.integers(0, 4), 2)):
                moved = [float(v) for v in box + np.r_[shift, 0, 0]]
                predict(image, category, moved, np.roll(mask, shift[::-1], (0, 1)))
        for _ in range(150 if image % 5 == 0 else 3):
            predict(image, int(rng.choice(CATEGORIES[:2])), *draw(rng))
    categories = [dict(id=i, name=str(i)) for i in CATEGORIES]
    return dict(images=images, annotations=annotations, categories=categories), predictions


def run_evaluator(
    evaluator: type[COCOeval], truth: dict, predictions: list[dict], kind: str, max_dets: list[int]
) -> COCOeval:
    content = COCO()
    content.dataset = deepcopy(truth)
    content.createIndex()
    predictions = deepcopy(predictions)
    for prediction in predictions if kind == 'segm' else ():
        del prediction['bbox']  # as mmdet does; pycocotools would take the sizes of the boxes
    evaluation = evaluator(content, content.loadRes(predictions), kind)
    evaluation.params.catIds, evaluation.params.maxDets = list(CATEGORIES), max_dets
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return evaluation


@pytest.mark.parametrize('max_dets', [[1, 10, 100], [100, 300, 1000]])
@pytest.mark.parametrize('kind', KINDS)
def test_faster_coco_eval_gives_the_figures_of_pycocotools(kind, max_dets):
    pytest.importorskip('faster_coco_eval')
    environment.require('xcit_mm.engine.coco_metric')
    from xcit_mm.engine.coco_metric import FasterCOCOeval

    for seed in range(3):
        scenes = crowded_scenes(seed)
        expected = run_evaluator(COCOeval, *scenes, kind, max_dets)
        actual = run_evaluator(FasterCOCOeval, *scenes, kind, max_dets)
        assert np.array_equal(np.round(actual.stats, 3), np.round(expected.stats, 3))
        assert len(set(np.round(expected.stats, 3))) > 6
        assert np.array_equal(actual.eval['recall'], expected.eval['recall'])
        assert np.array_equal(actual.eval['scores'], expected.eval['scores'])
        difference = actual.eval['precision'] - expected.eval['precision']
        assert np.abs(difference).max() <= 2**-52


def test_pycocotools_evaluates_where_the_last_bit_could_change_a_digit(monkeypatch):
    pytest.importorskip('faster_coco_eval')
    environment.require('xcit_mm.engine.coco_metric')
    from xcit_mm.engine import coco_metric

    scenes = crowded_scenes(0)
    monkeypatch.setattr(coco_metric, 'MARGIN', 1e-2)  # every figure is near a border
    expected = run_evaluator(COCOeval, *scenes, 'segm', [1, 10, 100])
    actual = run_evaluator(coco_metric.FasterCOCOeval, *scenes, 'segm', [1, 10, 100])
    assert np.array_equal(actual.stats, expected.stats)
    assert np.array_equal(actual.eval['precision'], expected.eval['precision'])


def test_metrics_are_the_same_without_faster_coco_eval(coco, monkeypatch, log):
    pytest.importorskip('faster_coco_eval')
    from xcit_mm.engine import coco_metric

    expected = evaluate(coco, near_the_truth)
    assert 'faster-coco-eval evaluates the predictions' in log
    monkeypatch.setattr(coco_metric, 'COCOeval_faster', None)
    assert evaluate(coco, near_the_truth) == expected
    assert 'pycocotools evaluates the predictions' in log


@pytest.mark.parametrize(
    ('kwargs', 'names'),
    [
        ({}, NAMES),
        (dict(metric_items=['mAP_50', 'AR@100']), ('mAP_50', 'AR@100')),
        (dict(format_only=True, outfile_prefix='predictions'), ()),
    ],
)
def test_the_precision_is_zero_if_nothing_is_detected(coco, tmp_path, monkeypatch, kwargs, names):
    monkeypatch.chdir(tmp_path)
    metrics = evaluate(coco, nothing, **kwargs)
    assert set(metrics) == {f'coco/{kind}_{name}' for kind in KINDS for name in names}
    assert set(metrics.values()) <= {0.0}


def iou_metric(classes: tuple[str, ...], **kwargs):
    environment.require('xcit_mm.engine.iou_metric')
    metric = METRICS.build(dict(type='ClassIoUMetric', **kwargs))
    metric.dataset_meta = dict(classes=classes)
    return metric


def test_predictions_without_labels_are_only_written(tmp_path):
    metric = iou_metric(('background', 'circle'), format_only=True, output_dir=str(tmp_path))
    predicted = dict(data=torch.zeros(1, 4, 4, dtype=torch.int64))
    metric.process({}, [dict(pred_sem_seg=predicted, img_path='a.jpg')])
    assert metric.evaluate(1) == {}
    assert (tmp_path / 'a.png').is_file()


def test_ious_are_those_of_a_plain_count(tmp_path):
    classes = ('background', 'circle', 'square', 'triangle')
    metric = iou_metric(classes, iou_metrics=['mIoU'])
    rng = np.random.default_rng(0)
    confusion = np.zeros((4, 4), dtype=np.int64)  # label, prediction
    for _ in range(5):
        label = rng.choice([0, 1, 2, 255], size=(1, 17, 23))  # no triangle, some ignored
        wrong = rng.random(label.shape) < 0.3
        predicted = np.where(wrong, rng.integers(0, 3, label.shape), label % 255)
        for i, j in zip(label.ravel(), predicted.ravel(), strict=True):
            if i != 255:
                confusion[i, j] += 1
        maps = dict(pred_sem_seg=predicted, gt_sem_seg=label)
        metric.process({}, [{k: dict(data=torch.from_numpy(v)) for k, v in maps.items()}])
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
