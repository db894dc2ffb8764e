"""tools/check_dataset.py names everything that is planted, with its count, and nothing else."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers.in_process import call_tool
from helpers.planted import PIPELINE_FAILS, edited, plant_ade, plant_coco, plant_coco_evaluation
from helpers.runs import DETECTOR, SEGMENTOR
from PIL import Image

from xcit_mm import UserError
from xcit_mm.config.load import load_config
from xcit_mm.data.audit import annotations as kinds
from xcit_mm.data.audit import audit as check
from xcit_mm.data.audit import sample_check
from xcit_mm.data.audit.examples import Examples
from xcit_mm.data.transforms import decode as im

LABELS = 'ade/annotations/training/000000000001.png'


@pytest.fixture
def call(monkeypatch, capfd, root, tmp_path):
    """Run the tool on the copy, and return its exit code, output and JSON file."""

    def run(config):
        arguments = ['--out', tmp_path / 'out.json', '--cfg-options', f'data_root={root}']
        code, output, _ = call_tool(monkeypatch, capfd, 'check_dataset.py', config, *arguments)
        return code, output, json.loads((tmp_path / 'out.json').read_text())

    return run


def check_copy(config, root, splits=('train', 'val'), workers=2, **options) -> check.Report:
    cfg = load_config(config, {'data_root': str(root)} | options)
    return check.check_dataset(cfg, splits, workers)


def test_good_data_has_no_findings(call, root):
    code, output, report = call(DETECTOR)
    assert code == 0
    assert 'Images read: 24 of train, 4 of val.\nA run would not stop at this data.' in output
    content = [
        json.loads((root / f'coco/annotations/instances_{split}2017.json').read_text())
        for split in ('train', 'val')
    ]
    names = {category['id']: category['name'] for category in content[0]['categories']}
    train, val = (Counter(names[a['category_id']] for a in c['annotations']) for c in content)
    assert report == dict(
        images=dict(train=24, val=4),
        remarks=[],
        failures=[],
        findings=[],
        examples=dict(train=train, val=val),
    )


@pytest.mark.parametrize(
    ('config', 'plant', 'bad'), [(DETECTOR, plant_coco, 6), (SEGMENTOR, plant_ade, 7)]
)
def test_all_that_is_planted_is_found(call, root, config, plant, bad):
    planted = plant(root)
    del planted[PIPELINE_FAILS]  # fails in one of two random flips
    code, output, report = call(config)
    assert code == 1
    assert Counter(f['kind'] for f in report['findings'] if f['split'] == 'train') == planted
    assert len(report['findings']) == sum(planted.values())
    *lost, failure = report['failures']
    assert failure.startswith(f'train: {bad} of 24 images are bad, more than the share of 0.01')
    assert all(f'A run would stop: {line}' in output for line in report['failures'])
    if config == DETECTOR:
        assert len(lost) == 1 and f'{planted[kinds.BROKEN_MASK]} x {kinds.BROKEN_MASK}' in lost[0]
        assert output.startswith(f'A run would stop: {lost[0][:60]}')  # it is said first

    for finding in report['findings']:
        kind = finding['kind']
        expected = kinds.CONSEQUENCES[kind][0] if kind in kinds.CONSEQUENCES else 'skipped'
        assert finding['consequence'] == expected
        assert f'{planted[kind]} x {kind} ({expected})' in output.replace('image: ', '')
        assert (finding['annotation_id'] is not None) == (kind in kinds.CONSEQUENCES)
        assert str(root) in finding['file'] or kind == kinds.NO_IMAGE
    assert check_copy(config, root, ['train'], max_bad_share=bad / 24).failures == []


def test_images_of_12_bits_are_named(call, root):
    path = min((root / 'ade/images/training').iterdir())
    dark = np.array(Image.open(path)) // 32  # a JPEG may add a little
    Image.fromarray(dark).save(path, quality=100)
    code, output, report = call(SEGMENTOR)
    [finding] = report['findings']
    assert code == 0 and finding['kind'] == check.DARK and finding['file'] == str(path)
    assert f'train: 1 x {check.DARK} (used as it is), such as' in output


def test_a_folder_without_images_of_the_suffix_is_refused(root):
    folder = root / 'ade/images/training'
    for path in folder.iterdir():
        path.rename(path.with_suffix('.tif'))
    message = rf'train data: {folder} has no images \*\.jpg: set img_suffix of the dataset'
    with pytest.raises(UserError, match=message):
        check_copy(SEGMENTOR, root)


def test_what_stops_an_evaluation_is_a_failure(root):
    planted = plant_coco_evaluation(root)
    report = check_copy(DETECTOR, root)
    assert Counter((f.split, f.kind) for f in report.findings) == {
        ('val', kind): count for kind, count in planted.items()
    }
    stopping = {kind for kind in planted if kind != kinds.OUTSIDE}
    assert set(report.failures) == {f'val: 1 x {kind}' for kind in stopping}


def test_labels_of_no_class_stop_a_run(root):
    labels = np.array(Image.open(root / LABELS))
    labels[0, :2] = 0, 255  # unlabeled, and ignored
    Image.fromarray(labels).save(root / LABELS)
    report = check_copy(SEGMENTOR, root, ['train'])
    assert report.images == dict(train=24) and not report.findings and not report.failures
    labels[0, :3] = 5, 254, 44
    Image.fromarray(labels).save(root / LABELS)
    report = check_copy(SEGMENTOR, root, ['train'])
    assert report.failures == [f'train: 1 x {check.NO_CLASS}']
    assert report.findings[0].detail == f'{root / LABELS} has 5, 44, 254'
    Image.fromarray(labels).convert('RGB').save(root / LABELS)
    [finding] = check_copy(SEGMENTOR, root, ['train']).findings
    assert finding.kind == check.NO_CLASS and finding.detail.endswith('has 3 channels')


def test_an_annotation_file_that_cannot_be_used_is_a_failure_beside_the_others(root):
    with edited(root / 'coco/annotations/instances_train2017.json') as content:
        content['annotations'] = content['annotations'][:1] * 2
    min((root / 'coco/val2017').iterdir()).unlink()
    report = check_copy(DETECTOR, root)
    assert report.images == dict(train=0, val=4)
    assert [(f.split, f.kind) for f in report.findings] == [('val', im.MISSING)]
    assert 'has the id 1 of an earlier entry' in report.failures[0]


def annotated(root, split='train') -> Path:
    return root / f'coco/annotations/instances_{split}2017.json'


def test_an_image_that_a_transform_fails_on_stops_an_evaluation_and_is_skipped_in_training(root):
    for split in ('train', 'val'):
        Image.new('RGB', (2400, 1), 'gray').save(root / f'coco/{split}2017/thin.png')
        with edited(annotated(root, split)) as content:
            content['images'].append(dict(id=999, file_name='thin.png', width=2400, height=1))
    resize = dict(type='Resize', scale=(160, 160), keep_ratio=True)
    cfg = load_config(DETECTOR, {'data_root': str(root), 'max_bad_share': 0.1})
    cfg.train_dataloader.dataset.pipeline.insert(2, resize)
    report = check.check_dataset(cfg, ('train', 'val'), workers=1)
    found = {f.split: f for f in report.findings}
    for split, consequence in dict(train='skipped', val=kinds.STOPS).items():
        assert found[split].file.endswith(f'{split}2017/thin.png')
        assert (found[split].kind, found[split].consequence) == (PIPELINE_FAILS, consequence)
        assert 'in Resize(scale=(160, 160)' in found[split].detail
    assert report.failures == [f'val: 1 x {PIPELINE_FAILS}']


def test_what_the_model_cannot_take_is_named(root):
    cfg = load_config(SEGMENTOR, {'data_root': str(root)})
    (path, *_) = sorted((root / 'ade/images/training').iterdir())[3:]
    for file in (path, root / 'ade/annotations/training' / f'{path.stem}.png'):
        Image.open(file).crop((0, 0, 100, 80)).resize((300, 240), 0).save(file)
    cfg.train_dataloader.dataset.pipeline = [
        t for t in cfg.train_dataloader.dataset.pipeline if 'Crop' not in t.type
    ]
    cfg.model.data_preprocessor.size = (160, 160)
    report = check.check_dataset(cfg, ['train'], workers=1)
    assert {f.kind for f in report.findings} == {sample_check.BATCH_FAILS}
    assert 'images of the shapes (3, 160, 160) and (3, 240, 300)' in report.findings[0].detail


def test_data_without_examples_is_refused_and_classes_without_any_are_named(root):
    with edited(annotated(root)) as content:
        (circle,) = (c['id'] for c in content['categories'] if c['name'] == 'circle')
        for annotation in content['annotations']:  # as some tools write it
            annotation['iscrowd'] = '1' if annotation['category_id'] == circle else '0.0'
    report = check_copy(DETECTOR, root, workers=1)
    assert report.failures == [] and report.examples['train']['circle'] == 0
    assert report.examples['train']['square'] > 0
    assert 'annotations.iscrowd are texts or floats' in report.remarks[0]
    assert report.remarks[1:] == [
        'train: no objects of circle, which cannot be learned, although val has some'
    ]
    with edited(annotated(root)) as content:
        for annotation in content['annotations']:
            annotation['iscrowd'] = 1
    (failure,) = check_copy(DETECTOR, root, workers=1).failures
    assert failure.startswith('none of the 24 images of train has an object: ')


@pytest.mark.parametrize(
    ('background', 'message'),
    [
        (0, 'no pixel of the 24 label images of train belongs to a class, because all are ignored'),
        (
            1,
            'all labeled pixels of the 24 label images of train are background, and the others are',
        ),
    ],
)
def test_masks_of_which_all_but_one_value_are_ignored_are_refused(root, background, message):
    for path in (root / 'ade/annotations/training').iterdir():
        labels = np.array(Image.open(path))
        Image.fromarray(np.where(labels > 1, 255, background).astype(np.uint8)).save(path)
    (failure,) = check_copy(SEGMENTOR, root, ['train'], workers=1).failures
    assert failure.startswith(message)


def test_examples_are_counted_as_one_by_one():
    labels = [[0, 0, 2], [2], [], [1, 1]]
    examples = Examples.of('objects', labels, 4)
    for i in range(4):
        having = [of_image for of_image in labels if i in of_image]
        assert examples.counts[i] == sum(of_image.count(i) for of_image in labels)
        assert examples.images[i] == len(having)
        assert examples.around[i] == sum(map(len, having))
    assert examples.number == 4


def test_labels_are_those_that_the_pipeline_loads(root):
    labels = np.array(Image.open(root / LABELS)).astype(np.uint16)
    Image.fromarray(labels + 256).save(root / LABELS)
    cfg = load_config(SEGMENTOR, {'data_root': str(root)})
    cfg.train_dataloader.dataset.reduce_zero_label = False
    cfg.train_dataloader.dataset.pipeline[1].reduce_zero_label = False
    findings = check.check_dataset(cfg, ['train'], workers=2).findings
    assert {(f.kind, f.detail.split(' has ')[-1]) for f in findings} == {
        (check.NO_CLASS, ', '.join(map(str, np.unique(labels + 256)[:5]))),
        (check.NO_CLASS, '4'),  # zero is the first class, and so 3 the last one
    }
