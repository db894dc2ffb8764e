"""tools/check_dataset.py names everything that is planted, with its count, and nothing else."""

import json
import os
import shutil

import numpy as np
import pytest
from helpers.planted import (
    plant_ade,
    plant_coco,
    plant_coco_evaluation,
    plant_wrong_labels,
)
from PIL import Image

from xcit_mm.datasets import annotations as of
from xcit_mm.datasets import check
from xcit_mm.datasets import images as im
from xcit_mm.engine.config.load import load_config

DETECTOR = 'configs/mask_rcnn_xcit_n12_16_shapes.py'
SEGMENTOR = 'configs/sem_fpn_xcit_n12_16_shapes.py'
CLEAN = 'A run would not stop at this data.'


@pytest.fixture
def root(tmp_path, shapes_root):
    """A copy of the shapes."""
    shutil.copytree(shapes_root, tmp_path / 'shapes')
    return tmp_path / 'shapes'


@pytest.fixture
def checked(run_tool, root, tmp_path):
    """Run the tool on the copy, as a command line: the process, and what is in its JSON file."""

    def run(config, *options):
        out = tmp_path / 'report.json'
        done = run_tool(
            'check_dataset.py', config, '--workers', 2, '--out', out, '--cfg-options',
            f'data_root={root}', *options,
        )  # fmt: skip
        return done, json.loads(out.read_text()) if out.exists() else None

    return run


def check_in_this_process(config, root, **options) -> check.Report:
    return check.check_dataset(load_config(config, {'data_root': str(root)} | options), workers=2)


def counts(report: check.Report, split: str) -> dict[str, int]:
    kinds = [finding.kind for finding in report.findings if finding.split == split]
    return {kind: kinds.count(kind) for kind in kinds}


def rows(stdout: str) -> dict[str, int]:
    """The counts of the printed table."""
    cells = [[c.strip() for c in line.split('│')] for line in stdout.splitlines() if '│' in line]
    return {row[2].removeprefix('image: '): int(row[3]) for row in cells if row[3]}


def test_good_data_has_no_findings(checked):
    done, report = checked(DETECTOR)
    assert done.returncode == 0, done.stderr
    assert CLEAN in done.stdout and 'Images read: 24 of train, 4 of val.' in done.stdout
    assert report == dict(
        images=dict(train=24, val=4), counts=dict(train={}, val={}), failures=[], findings=[]
    )


def test_good_and_ignored_labels_have_no_findings(root):
    path = root / 'ade/annotations/training/000000000001.png'
    labels = np.array(Image.open(path))
    labels[0, :2] = 0, 255
    Image.fromarray(labels).save(path)
    report = check_in_this_process(SEGMENTOR, root)
    assert report == check.Report(images=dict(train=24, val=4))


@pytest.mark.parametrize(
    ('config', 'plant', 'bad'), [(DETECTOR, plant_coco, 8), (SEGMENTOR, plant_ade, 9)]
)
def test_all_that_is_planted_is_found(checked, root, config, plant, bad):
    planted = plant(root)
    done, report = checked(config)
    assert done.returncode == 1, done.stderr
    assert report['counts'] == dict(train=planted, val={})
    assert rows(done.stdout) == planted
    *others, failure = report['failures']
    assert failure.startswith(f'train: {bad} of 24 images are bad, more than the share of 0.01')
    assert failure in done.stdout
    assert 'Traceback' not in done.stderr
    if config == DETECTOR:
        [lost] = others
        assert f'{planted[of.BROKEN_MASK]} x {of.BROKEN_MASK}' in lost
        assert done.stdout.startswith('A run would stop: train: ') and lost[:60] in done.stdout
    else:
        assert others == []

    findings = report['findings']
    fates = {finding['kind']: finding['fate'] for finding in findings}
    assert fates[im.CUT_OFF] == 'skipped' and fates[im.CMYK] == 'converted'
    for finding in findings:
        is_of_annotation = finding['kind'] in of.IN_TRAINING
        assert (finding['annotation_id'] is not None) == is_of_annotation
        assert str(root) in finding['file'] or finding['kind'] == of.NO_IMAGE
    if config == DETECTOR:
        assert fates[of.OUTSIDE] == 'dropped' and fates[of.NO_OBJECTS] == 'kept'
        gone = [finding['file'] for finding in findings if finding['kind'] == im.MISSING]
        assert gone == [str(root / 'coco/train2017/000000000001.jpg')]


def test_the_share_of_bad_images_is_that_of_the_config(root):
    plant_ade(root)
    assert not check_in_this_process(SEGMENTOR, root, max_bad_share=9 / 24).failures
    assert check_in_this_process(SEGMENTOR, root, max_bad_share=8.9 / 24).failures


def test_what_stops_an_evaluation_stops_it_here(root):
    planted = plant_coco_evaluation(root)
    report = check_in_this_process(DETECTOR, root)
    assert counts(report, 'train') == {} and counts(report, 'val') == planted
    stopping = {kind for kind in planted if kind != of.OUTSIDE}
    assert set(report.failures) == {f'val: 1 x {kind}' for kind in stopping}


def test_bad_images_of_an_evaluation_may_be_skipped(root):
    (root / 'ade/images/validation/000000000026.jpg').write_bytes(b'')
    assert check_in_this_process(SEGMENTOR, root).failures == [f'val: 1 x {im.EMPTY}']
    report = check_in_this_process(SEGMENTOR, root, skip_bad_in_evaluation=True)
    assert not report.failures and counts(report, 'val') == {im.EMPTY: 1}


@pytest.mark.parametrize(('folder', 'split'), [('training', 'train'), ('validation', 'val')])
def test_labels_of_no_class_stop_a_run(root, folder, split):
    count = plant_wrong_labels(root, folder)
    report = check_in_this_process(SEGMENTOR, root)
    assert counts(report, split) == {check.NO_CLASS: count}
    assert report.failures == [f'{split}: {count} x {check.NO_CLASS}']
    assert [f.detail.split('.png has ')[1] for f in report.findings] == ['5', '254', '44']


def test_labels_in_colour_are_of_no_class(root):
    path = root / 'ade/annotations/training/000000000001.png'
    Image.open(path).convert('RGB').save(path)
    [finding] = check_in_this_process(SEGMENTOR, root).findings
    assert finding.kind == check.NO_CLASS and finding.detail.endswith('has 3 channels')


def test_without_zero_as_unlabelled_it_is_a_class(root):
    cfg = load_config(SEGMENTOR, {'data_root': str(root)})
    cfg.train_dataloader.dataset.reduce_zero_label = False
    report = check.check_dataset(cfg, ['train'], workers=2)
    assert {f.detail.split(' has ')[1] for f in report.findings} == {'4'}


def test_labels_that_are_cut_are_bad(root):
    path = root / 'ade/annotations/training/000000000001.png'
    Image.fromarray(np.array(Image.open(path)).astype(np.uint16) + 256).save(path)
    report = check_in_this_process(SEGMENTOR, root)
    assert counts(report, 'train') == {im.LABELS_TOO_LARGE: 1} and report.findings[0].is_bad


def test_no_image_left_is_a_failure(root):
    path = root / 'coco/annotations/instances_train2017.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(annotations=[])))
    filtered = {'train_dataloader.dataset.filter_cfg.filter_empty_gt': True}
    report = check_in_this_process(DETECTOR, root, **filtered)
    assert report.images == dict(train=0, val=4)
    (failure,) = report.failures
    assert failure.startswith(f'train: {path}: none of its 24 images is left')
    assert counts(report, 'train')[of.NO_OBJECTS] == 24


def test_a_file_that_cannot_be_used_is_said_beside_the_rest(root):
    path = root / 'coco/annotations/instances_train2017.json'
    content = json.loads(path.read_text())
    content['annotations'].append(content['annotations'][0])
    path.write_text(json.dumps(content))
    (root / 'coco/val2017' / sorted(p.name for p in (root / 'coco/val2017').iterdir())[0]).unlink()
    report = check_in_this_process(DETECTOR, root)
    assert report.images == dict(train=0, val=4)
    assert counts(report, 'val')[im.MISSING] == 1
    assert any('two annotations with the id' in failure for failure in report.failures)


@pytest.mark.parametrize(
    ('args', 'says'),
    [
        (('--workers', 0), '--workers 0: not a positive number'),
        (('--out', '/'), '--out /: a folder, not a file'),
        (('--cfg-options', 'data_root=/no/data'), 'is missing'),
    ],
)
def test_wrong_input_is_one_sentence(run_tool, args, says):
    done = run_tool('check_dataset.py', DETECTOR, *args)
    assert done.returncode == 2 and says in done.stderr and 'Traceback' not in done.stderr


class DyingReader:
    """Ends its process at two images."""

    split = 'train'
    dataset = range(100)

    def inspect(self, index):
        if index in (5, 77):
            os._exit(1)
        return [check.Finding('train', 'read', 'kept', str(index))]

    def bad(self, index, kind):
        return check.Finding('train', kind, 'skipped', str(index))


@pytest.mark.parametrize('workers', [1, 2])
def test_an_image_that_ends_the_process_is_found(workers):
    parts = list(check._in_processes(DyingReader(), workers))
    found = {int(f.file): f.kind for findings, _ in parts for f in findings}
    assert sum(done for _, done in parts) == sum(len(findings) for findings, _ in parts) == 100
    assert {i for i, kind in found.items() if kind == check.ENDS_THE_PROCESS} == {5, 77}
    assert found.keys() == set(range(100))
