"""The metrics equal pycocotools' and a plain count, on the same predictions."""

import json
import math
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.crowded_scenes import CATEGORIES, crowded_scenes
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.registry import METRICS
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import xcit_mm  # noqa: F401  registers the metrics
from xcit_mm.base import environment
from xcit_mm.large.files.arrays import Array
from xcit_mm.large.labels.label_windows import LabelWindows
from xcit_mm.train.report.tables import metrics_table, write_metrics

NAMES = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l')
KINDS = ('bbox', 'segm')


@pytest.fixture
def coco(shapes_root) -> COCO:
    environment.require('xcit_mm.train.metrics.coco_metric')
    path = shapes_root / 'coco/annotations/instances_train2017.json'
    content = COCO(str(path))
    content.path = path
    return content


def evaluated(
    coco: COCO, predict, classes: tuple = ('circle', 'square', 'triangle'), **kwargs
) -> tuple[BaseMetric, dict[str, float]]:
    """Evaluate what ``predict(coco, image_id, shape)`` returns for each image."""
    cfg = dict(type='CocoAPMetric', ann_file=str(coco.path), metric=list(KINDS)) | kwargs
    metric = METRICS.build(cfg)
    metric.dataset_meta = dict(classes=classes)
    for image in coco.loadImgs(coco.getImgIds()):
        shape = image['height'], image['width']
        boxes, masks, labels, scores = predict(coco, image['id'])
        predicted = dict(
            bboxes=torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
            labels=torch.tensor(labels, dtype=torch.int64),
            scores=torch.tensor(scores, dtype=torch.float32),
        )
        if masks is not None:
            predicted['masks'] = torch.from_numpy(np.array(masks).reshape(-1, *shape)).bool()
        metric.process({}, [dict(img_id=image['id'], ori_shape=shape, pred_instances=predicted)])
    return metric, metric.evaluate(len(coco.getImgIds()))


def evaluate(*args, **kwargs) -> dict[str, float]:
    return evaluated(*args, **kwargs)[1]


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


@pytest.mark.parametrize(
    'forms',
    [
        dict(images='5eb3-{}', categories='{}-b', annotations='a{}'),
        dict(annotations=''),  # from 0, which pycocotools takes for none
    ],
    ids=['names', 'zero'],
)
def test_ids_in_other_forms_give_the_same_figures(coco, tmp_path, forms):
    expected = evaluate(coco, near_the_truth)
    content = json.loads(Path(coco.path).read_text())
    for kind, form in forms.items():
        for number, entry in enumerate(content[kind]):
            entry['id'] = form.format(entry['id']) if form else number
    for entry in content['annotations']:
        for kind, field in (('images', 'image_id'), ('categories', 'category_id')):
            entry[field] = forms[kind].format(entry[field]) if kind in forms else entry[field]
    changed = deepcopy(coco)
    changed.path = tmp_path / 'own.json'
    changed.path.write_text(json.dumps(content))
    prefix = tmp_path / 'predictions'
    assert evaluate(changed, near_the_truth, outfile_prefix=str(prefix)) == expected
    truth = tmp_path / 'predictions.gt.json'
    assert truth.is_file() == ('images' in forms)
    if truth.is_file():  # anybody can evaluate the predictions with it, and find their images
        written = COCO(str(truth))
        assert len(written.loadRes(str(tmp_path / 'predictions.bbox.json')).anns)
        assert [image['file_name'] for image in written.imgs.values()] == [
            image['file_name'] for image in coco.imgs.values()
        ]


@pytest.mark.parametrize('name', ['faster-coco-eval', 'pycocotools'])
def test_figures_of_all_and_of_each_class_are_those_of_pycocotools(
    coco, tmp_path, monkeypatch, name
):
    """Also where the ids of the categories do not ascend, and for a class without objects."""
    from xcit_mm.train.metrics import coco_metric

    if name == 'pycocotools':
        monkeypatch.setattr(coco_metric, 'COCOeval_faster', None)
    else:
        pytest.importorskip('faster_coco_eval')
    content = json.loads(Path(coco.path).read_text())
    content['categories'].append(dict(id=0, name='star'))
    changed = deepcopy(coco)
    changed.path = tmp_path / 'own.json'
    changed.path.write_text(json.dumps(content))
    names = ('circle', 'square', 'triangle', 'star')
    prefix = str(tmp_path / 'predictions')
    metrics = evaluate(changed, near_the_truth, names, outfile_prefix=prefix)
    for kind in KINDS:
        predictions = json.loads((tmp_path / f'predictions.{kind}.json').read_text())
        expected = dict(zip(NAMES, figures(coco, predictions, kind, [1, 2, 3])[:6], strict=True))
        for id_, class_name in enumerate(names[:3], 1):
            of_class = figures(coco, predictions, kind, [id_])
            expected |= {f'AP_{class_name}': of_class[0], f'AP50_{class_name}': of_class[1]}
        # mmdet rounds to three digits
        assert {k: metrics[f'coco/{kind}_{k}'] for k in expected} == pytest.approx(
            expected, abs=5.001e-4
        )
        assert metrics[f'coco/{kind}_AP_star'] == metrics[f'coco/{kind}_AP50_star'] == -1
        assert 0.2 < metrics[f'coco/{kind}_mAP'] < 0.9
    assert metrics['coco/bbox_AP_circle'] != metrics['coco/segm_AP_circle']


@pytest.mark.parametrize('numbers', [None, (1, 10, 500)])
def test_all_figures_count_the_same_number_of_detections(tmp_path, log, numbers):
    """The values are pycocotools', whose summary has mAP of 100 detections only."""
    grid = [[20 * i, 20 * j, 10, 10] for i in range(15) for j in range(12)]
    objects = [dict(bbox=box, category_id=1) for box in grid] + [
        dict(bbox=[400, 400, 40 + i, 40], category_id=2) for i in range(3)
    ]
    common = dict(image_id=1, iscrowd=0)
    truth = dict(
        images=[dict(id=1, file_name='a.png', width=500, height=500)],
        annotations=[
            o | common | dict(id=i, area=o['bbox'][2] * o['bbox'][3])
            for i, o in enumerate(objects, 1)
        ],
        categories=[dict(id=1, name='pig'), dict(id=2, name='cow')],
    )
    path = tmp_path / 'dense.json'
    path.write_text(json.dumps(truth))
    coco = COCO(str(path))
    coco.path = path

    def shifted(coco: COCO, image_id: int) -> tuple[list, list, list, list]:
        boxes = [[x + i % 3, y, x + w, y + h] for i, (x, y, w, h) in enumerate(grid)]
        boxes += [[401, 400, 440, 440]]
        labels, scores = [0] * len(grid) + [1], [1 - i / 1000 for i in range(len(boxes))]
        return boxes, None, labels, scores

    limit = 100 if numbers is None else 500
    environment.require('xcit_mm.train.metrics.coco_metric')
    options = dict(metric='bbox', metric_items=[*NAMES, 'AR@10', f'AR@{limit}', f'AR_s@{limit}'])
    options |= {} if numbers is None else dict(proposal_nums=numbers)
    prefix = str(tmp_path / 'predictions')
    metric, metrics = evaluated(coco, shifted, ('pig', 'cow'), outfile_prefix=prefix, **options)
    predictions = json.loads((tmp_path / 'predictions.bbox.json').read_text())
    evaluation = run_evaluator(COCOeval, truth, predictions, 'bbox', (1, 10, limit), (1, 2))
    of_class = [
        run_evaluator(COCOeval, truth, predictions, 'bbox', (1, 10, limit), [i]) for i in (1, 2)
    ]
    precision = evaluation.eval['precision'][:, :, :, 0, 2]
    expected = dict(zip(NAMES, evaluation.stats[:6], strict=True)) | dict(mAP=precision.mean())
    recalls = ('AR@10', f'AR@{limit}', f'AR_s@{limit}')
    expected |= dict(zip(recalls, evaluation.stats[7:10], strict=True))
    for i, name in enumerate(('pig', 'cow')):
        expected |= {f'AP_{name}': precision[:, :, i].mean(), f'AP50_{name}': of_class[i].stats[1]}
    found = {name: metrics[f'coco/bbox_{name}'] for name in expected}
    assert found == pytest.approx(expected, abs=5.001e-4)
    assert metrics['coco/bbox_mAP'] == pytest.approx(
        np.mean([metrics[f'coco/bbox_AP_{name}'] for name in ('pig', 'cow')]), abs=1e-3
    )
    warned = [message for message in log if 'a.png has 180 objects of the class pig' in message]
    assert len(warned) == (numbers is None)
    (boxes,) = metric.error_tables()
    assert boxes.confusion.sum(0)[0] == min(limit, 180)
    assert f'At most {limit} detections' in metrics_table(metrics, [metric.note])


def figures(coco: COCO, predictions: list[dict], kind: str, ids: list[int]) -> np.ndarray:
    return run_evaluator(COCOeval, coco.dataset, predictions, kind, ids=ids).stats


def test_the_final_table_says_what_its_figures_are():
    metrics = {'coco/bbox_mAP': 0.5, 'coco/bbox_mAP_s': -1.0, 'coco/segm_mAP': 0.4}
    metrics |= {'coco/bbox_AP_red apple': 0.25, 'coco/segm_AP_red apple': -1.0}
    metrics |= {'coco/segm_AP50_red apple': 0.5}
    metrics |= {'coco/bbox_AR@100': 0.7, 'mIoU': 44.0, 'text': 'no number'}
    metrics |= {f'coco_panoptic/{name}': 12.345 for name in ('PQ', 'SQ', 'PQ_th')}
    assert [line.split('  ')[0] for line in metrics_table(metrics).splitlines()] == [
        *('', 'all', 'things'),
        *('', 'boxes', 'masks'),
        *('class', 'red apple', 'Box AR@100', 'mIoU'),
    ]
    assert [line.split() for line in metrics_table(metrics).splitlines()[:8]] == [
        *(['PQ', 'SQ'], ['all', '12.35', '12.35'], ['things', '12.35', '-']),
        *(['AP', 'small'], ['boxes', '0.500', '-'], ['masks', '0.400', '-']),
        ['class', *('box', 'AP', 'mask', 'AP', 'mask', 'AP50')],
        ['red', 'apple', '0.250', '-', '0.500'],
    ]
    assert metrics_table({}) == 'No metrics were computed.'


def run_evaluator(
    evaluator: type[COCOeval],
    truth: dict,
    predictions: list[dict],
    kind: str,
    max_dets: Sequence[int] = (1, 10, 100),
    ids: Sequence[int] = CATEGORIES,
) -> COCOeval:
    content = COCO()
    content.dataset = deepcopy(truth)
    content.createIndex()
    predictions = deepcopy(predictions)
    for prediction in predictions if kind == 'segm' else ():
        prediction.pop('bbox', None)  # as mmdet does; pycocotools would use the sizes of the boxes
    evaluation = evaluator(content, content.loadRes(predictions), kind)
    evaluation.params.catIds, evaluation.params.maxDets = list(ids), list(max_dets)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return evaluation


@pytest.mark.parametrize(('kind', 'max_dets'), [('bbox', [100, 300, 1000]), ('segm', [1, 10, 100])])
def test_faster_coco_eval_gives_the_figures_of_pycocotools(kind, max_dets):
    pytest.importorskip('faster_coco_eval')
    environment.require('xcit_mm.train.metrics.coco_metric')
    from xcit_mm.train.metrics.coco_metric import FasterCOCOeval

    for seed in range(2):
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
    environment.require('xcit_mm.train.metrics.coco_metric')
    from xcit_mm.train.metrics import coco_metric

    scenes = crowded_scenes(0)
    monkeypatch.setattr(coco_metric, 'MARGIN', 1e-2)  # every figure is near a border
    expected = run_evaluator(COCOeval, *scenes, 'segm')
    actual = run_evaluator(coco_metric.FasterCOCOeval, *scenes, 'segm')
    assert np.array_equal(actual.stats, expected.stats)
    assert np.array_equal(actual.eval['precision'], expected.eval['precision'])


def test_what_is_right_at_a_score_is_what_coco_matches(coco, tmp_path):
    score_thr = 0.4
    prefix = str(tmp_path / 'predictions')
    metric, _ = evaluated(coco, near_the_truth, score_thr=score_thr, outfile_prefix=prefix)
    tables = {tables.of: tables for tables in metric.error_tables()}
    for kind, of in dict(bbox='boxes', segm='masks').items():
        predictions = json.loads((tmp_path / f'predictions.{kind}.json').read_text())
        predictions = [p for p in predictions if p['score'] >= score_thr]
        for id_, row in enumerate(tables[of].rows_of_classes(), 1):
            evaluation = run_evaluator(COCOeval, coco.dataset, predictions, kind, ids=[id_])
            of_all_sizes = filter(None, evaluation.evalImgs[: len(coco.imgs)])
            hits = np.concatenate([found['dtMatches'][0] > 0 for found in of_all_sizes])
            assert (row['TP'], row['predicted']) == (hits.sum(), len(hits))
            assert row['annotated'] == len(coco.getAnnIds(catIds=[id_]))
            assert 0 < row['TP'] < row['predicted']
        names = [name for name, _ in tables[of].images]
        assert names == [image['file_name'] for image in coco.imgs.values()]


def test_errors_are_counted_if_nothing_is_detected(coco):
    metric, _ = evaluated(coco, nothing)
    for tables in metric.error_tables():
        assert tables.confusion[:3, 3].sum() == tables.confusion.sum() == len(coco.anns)


@pytest.mark.parametrize(
    ('kwargs', 'names'),
    [
        (dict(classwise=False), NAMES),
        (
            dict(metric_items=['mAP'], iou_thrs=[0.75]),
            ('mAP', 'AP_circle', 'AP_square', 'AP_triangle'),
        ),
        (dict(format_only=True, outfile_prefix='predictions'), ()),
    ],
)
def test_the_precision_is_zero_if_nothing_is_detected(coco, tmp_path, monkeypatch, kwargs, names):
    monkeypatch.chdir(tmp_path)
    metrics = evaluate(coco, nothing, **kwargs)
    assert set(metrics) == {f'coco/{kind}_{name}' for kind in KINDS for name in names}
    missing = {f'coco/{kind}_mAP_l' for kind in KINDS}  # no object of the shapes is large
    assert metrics == {name: -1.0 if name in missing else 0.0 for name in metrics}


def iou_metric(classes: tuple[str, ...], **kwargs):
    environment.require('xcit_mm.train.metrics.iou_metric')
    metric = METRICS.build(dict(type='ClassIoUMetric', **kwargs))
    metric.dataset_meta = dict(classes=classes)
    return metric


def test_predictions_without_labels_are_only_written(tmp_path):
    metric = iou_metric(('background', 'circle'), format_only=True, output_dir=str(tmp_path))
    predicted = dict(data=torch.zeros(1, 4, 4, dtype=torch.int64))
    metric.process({}, [dict(pred_sem_seg=predicted, img_path='a.jpg')])
    assert metric.evaluate(1) == {}
    assert (tmp_path / 'a.png').is_file()


def test_labels_of_pixels_without_data_do_not_count():
    metric = iou_metric(('background', 'circle'))
    labels = np.zeros((4, 4, 1), np.uint8)
    labels[:2, :2] = 1
    pixels = np.ones((4, 4, 3), np.float32)
    pixels[:, 2:] = np.nan
    predicted = np.where(np.isnan(pixels[..., 0]), 255, labels[..., 0])  # as it is predicted
    windows = LabelWindows(Array(labels, 'labels'), image=Array(pixels, 'image'))
    data = torch.from_numpy(predicted)[None]
    metric.process({}, [dict(label_windows=windows, pred_sem_seg=dict(data=data))])
    metric.evaluate(1)
    assert metric.class_iou == dict(background=100, circle=100)


def test_labels_and_predictions_of_no_class_have_a_row_and_a_column():
    metric = iou_metric(('background', 'circle'))
    maps = dict(gt_sem_seg=[[0, 0, 1, 7]], pred_sem_seg=[[0, 1, 9, 1]])
    sample = {name: dict(data=torch.tensor([values])) for name, values in maps.items()}
    metric.process({}, [sample])
    metric.evaluate(1)
    (tables,) = metric.error_tables()
    assert tables.confusion.tolist() == [[1, 1, 0], [0, 0, 1], [0, 1, 0]]
    assert tables.names == ('background', 'circle', 'no class')
    assert metric.class_iou == dict(background=50, circle=0)
    assert metric.class_figures == dict.fromkeys(('IoU', 'Acc'), dict(background=50, circle=0))


def test_areas_of_large_datasets_are_exact():
    """Beyond 2**24, float32 would lose single pixels."""
    metric = iou_metric(('background', 'circle'))
    pixels = np.array([2**24, 1]), np.array([0, 4])
    metric.results = [('a.png', pixels[::-1])] * 3
    metric.evaluate(3)
    (tables,) = metric.error_tables()
    assert tables.confusion.tolist() == [[3 * 2**24, 0], [0, 3]]


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

    (tables,) = metric.error_tables()
    assert np.array_equal(tables.confusion, confusion)
    assert (tables.of, tables.names) == ('pixels', classes)
    assert len(tables.images) == 5
    sums = [sum(numbers.get(1, (0, 0, 0))[k] for _, numbers in tables.images) for k in range(3)]
    assert sums == [confusion[1].sum(), confusion[:, 1].sum(), hits[1]]
    circle = tables.rows_of_classes()[1]
    assert circle['IoU percent'] == pytest.approx(expected[1])
    assert circle['F1'] == pytest.approx(2 * hits[1] / (sums[0] + sums[1]))

    write_metrics(tmp_path / 'out.json', 'c.py', 'w.pth', metrics, Evaluator(metric))
    written = json.loads((tmp_path / 'out.json').read_text())
    assert written['metrics'] == metrics
    assert list(written['class_iou']) == list(classes)
    *occurring, triangle = written['class_iou'].values()
    assert occurring == pytest.approx(expected, rel=1e-6)
    assert triangle is None
