"""Panoptic datasets of one's own classes, converted for the panoptic configs."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.in_process import call_tool
from helpers.planted import edited
from PIL import Image

from xcit_mm import UserError
from xcit_mm.config.load import load_config
from xcit_mm.data.audit.audit import check_dataset
from xcit_mm.data.importers.coco_panoptic import ForeignPanopticDataset
from xcit_mm.data.importers.write_coco import convert
from xcit_mm.data.importers.write_panoptic import PANOPTIC

TRAIN = 'coco/annotations/panoptic_train2017.json'
SEGMENT = 'bbox', 'area', 'iscrowd', 'id', 'category_id'


def test_a_run_accepts_the_config_and_segments_equal_the_original(
    shapes_root, tmp_path, monkeypatch, capfd
):
    typed = 'coco_panoptic', shapes_root / 'coco', '--root', tmp_path / 'own'
    code, output, _ = call_tool(monkeypatch, capfd, 'prepare_data.py', *typed)
    assert code == 0 and 'train.json: 24 images' in output
    for split in ('train', 'val'):
        new = json.loads((tmp_path / f'own/{split}.json').read_text())
        old = json.loads((shapes_root / f'coco/annotations/panoptic_{split}2017.json').read_text())
        assert new['categories'] == old['categories']
        assert len(new['images']) == len(old['images'])
        for one, other in zip(new['annotations'], old['annotations'], strict=True):
            assert Path(one['file_name']).name == other['file_name']
            for segment, original in zip(one['segments_info'], other['segments_info'], strict=True):
                for name in SEGMENT:
                    assert segment[name] == original[name]
    cfg = load_config(tmp_path / 'own/own.py')
    assert cfg.model.panoptic_head.num_things_classes == 3
    assert cfg.model.panoptic_fusion_head.num_stuff_classes == 1
    assert cfg.model.panoptic_head.loss_cls.class_weight == [1, 1, 1, 1, 0.1]
    assert cfg.val_evaluator.type == 'PanopticQualityMetric'
    report = check_dataset(cfg, workers=1)
    assert report.images == dict(train=24, val=4) and not report.findings + report.failures


@pytest.fixture
def own(tmp_path) -> Path:
    """Three images of 8x6 pixels: sky above two dogs; the file lists the sky first."""
    root = tmp_path / 'own'
    (root / 'images').mkdir(parents=True)
    (root / 'annotations/panoptic').mkdir(parents=True)
    ids = np.zeros((6, 8, 3), np.uint8)
    ids[:3], ids[3:, :4], ids[3:, 4:7] = (0, 1, 0), (7, 0, 0), (8, 0, 0)  # 256, 7, 8; 0: none
    categories = [dict(id=5, name='sky', isthing=0), dict(id=9, name='dog', isthing=1)]
    empty = dict(bbox=[0, 0, 1, 1], area=1)
    segments = [dict(id=i, category_id=5 if i == 256 else 9, **empty) for i in (256, 7, 8)]
    images, annotations = [], []
    for number, name in enumerate('abc', 1):
        Image.new('RGB', (8, 6)).save(root / f'images/{name}.jpg')
        Image.fromarray(ids).save(root / f'annotations/panoptic/{name}.png')
        images.append(dict(id=number, file_name=f'{name}.jpg', width=8, height=6))
        entry = dict(image_id=number, file_name=f'{name}.png', segments_info=segments)
        annotations.append(entry)
    content = dict(images=images, annotations=annotations, categories=categories)
    (root / 'annotations/panoptic.json').write_text(json.dumps(content))
    return root


def test_things_become_the_first_classes_and_boxes_are_measured(own, tmp_path):
    convert(ForeignPanopticDataset(own), tmp_path / 'out', PANOPTIC)
    content = json.loads((tmp_path / 'out/train.json').read_text())
    assert [(c['name'], c['isthing']) for c in content['categories']] == [('dog', 1), ('sky', 0)]
    sky, *dogs = content['annotations'][0]['segments_info']
    measured = [(s['id'], s['category_id'], s['bbox'], s['area']) for s in (sky, *dogs)]
    assert measured == [
        (256, 2, [0, 0, 8, 3], 24),
        (7, 1, [0, 3, 4, 3], 12),
        (8, 1, [4, 3, 3, 3], 9),
    ]
    cfg = load_config(tmp_path / 'out/out.py')
    assert (cfg.classes, cfg.things, cfg.stuff) == (('dog', 'sky'), 1, 1)
    report = check_dataset(cfg, workers=1)
    assert report.images == dict(train=2, val=1) and not report.failures


@pytest.mark.parametrize(
    ('name', 'split'),
    [
        ('panoptic_val2017', 'val'),
        ('own_validation', 'val'),
        ('panoptic_latest', 'train'),
    ],
)
def test_a_word_in_the_name_of_a_file_says_the_split(own, name, split):
    for path in own.glob('annotations/panoptic*'):
        path.rename(path.with_name(path.name.replace('panoptic', name)))
    assert [*ForeignPanopticDataset(own).splits] == [split]


def png(value: tuple[int, ...], size: tuple[int, int] = (8, 6)) -> Callable[[Path], object]:
    return lambda root: Image.new('RGB', size, value).save(root / 'annotations/panoptic/a.png')


def change(edit: Callable[[dict], object]) -> Callable[[Path], object]:
    def call(root: Path) -> None:
        with edited(root / 'annotations/panoptic.json') as content:
            edit(content)

    return call


@pytest.mark.parametrize(
    ('spoil', 'message'),
    [
        (png((3, 0, 0)), r'a\.png: 1 segments, such as 3, are not in panoptic\.json'),
        (png((7, 0, 0), (4, 4)), r'a\.png: 4x4 pixels, unlike its image'),
        (
            lambda root: (root / 'annotations/panoptic/a.png').unlink(),
            r'a\.png: its label file is miss',
        ),
        (change(lambda c: c['annotations'].pop(0)), r'no annotation of a\.jpg'),
        (change(lambda c: c['categories'][0].pop('isthing')), 'has the isthing None'),
    ],
)
def test_what_cannot_be_used_is_named(own, tmp_path, spoil, message):
    spoil(own)
    with pytest.raises(UserError, match=message):
        convert(ForeignPanopticDataset(own), tmp_path / 'out', PANOPTIC)


def test_files_of_a_dataset_must_have_the_same_classes(own):
    text = (own / 'annotations/panoptic.json').read_text()
    (own / 'annotations/panoptic_val.json').write_text(text.replace('sky', 'sea'))
    with pytest.raises(
        UserError, match=r'panoptic_val\.json has the classes dog, sea \(1 things\), but .*, sky'
    ):
        ForeignPanopticDataset(own)
