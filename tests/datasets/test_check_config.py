"""Missing data and other classes are found before anything is built, and named."""

import json
import os
import shutil

import pytest
from helpers import ROOT
from mmengine.config import Config

from xcit_mm import UserError, environment
from xcit_mm.datasets.config import check_classes, check_data
from xcit_mm.engine.config.load import load_config

DETECTOR = ROOT / 'configs/mask_rcnn_xcit_n12_16_shapes.py'
SEGMENTOR = ROOT / 'configs/sem_fpn_xcit_n12_16_shapes.py'
COCO = ROOT / 'configs/mask_rcnn_xcit_t12_16_3x.py'
ALL = ('train', 'val', 'test')


@pytest.mark.parametrize('config', [DETECTOR, SEGMENTOR])
def test_whole_data_passes(config, shapes_root):
    check_data(load_config(config, {'data_root': shapes_root}), ALL)


@pytest.mark.parametrize(
    ('config', 'removed', 'split', 'what'),
    [
        (DETECTOR, 'coco', 'train', 'folder'),
        (DETECTOR, 'coco/val2017', 'val', 'folder'),
        (DETECTOR, 'coco/annotations/instances_train2017.json', 'train', 'annotation file'),
        (SEGMENTOR, 'ade/annotations/validation', 'val', 'folder'),
    ],
)
def test_what_is_missing_is_named_with_its_place_and_the_remedy(
    tmp_path, shapes_root, config, removed, split, what
):
    root = tmp_path / 'shapes'
    shutil.copytree(shapes_root, root)
    target = root / removed
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    cfg = load_config(config, {'data_root': root})
    with pytest.raises(UserError) as error:
        check_data(cfg, ALL)
    message = str(error.value)
    assert message.startswith(f'{split} data: {what} {target} is missing')
    assert f'make_shapes.py {root}/ draws it' in message


@pytest.mark.parametrize('options', [{}, {'data_root': 'elsewhere'}], ids=['as it is', 'moved'])
@pytest.mark.parametrize('own_root', ['', "data_root = 'data/mine/'\n"])
@pytest.mark.parametrize('base', [DETECTOR, SEGMENTOR, COCO])
def test_how_to_get_the_data_of_a_config_is_not_said_of_other_data(
    tmp_path, base, own_root, options
):
    config = tmp_path / 'own.py'
    dataset = "train_dataloader = dict(dataset=dict(data_root='data/mine/'))\n"
    config.write_text(f"_base_ = '{base}'\n{own_root}{dataset}")
    with pytest.raises(UserError, match=r'/mine|elsewhere.* is missing.*; point to it with'):
        check_data(load_config(config, options), ('train',))


def test_wrapped_and_joined_datasets_are_looked_into(tmp_path):
    inner = dict(type='CocoDataset', data_root=str(tmp_path), ann_file='gone.json')
    joined = dict(type='ConcatDataset', datasets=[dict(type='RepeatDataset', dataset=inner)])
    cfg = Config(dict(train_dataloader=dict(dataset=joined)))
    with pytest.raises(UserError, match=r'gone\.json is missing.*--cfg-options data_root'):
        check_data(cfg, ('train',))


def test_the_evaluator_is_looked_into(tmp_path):
    metric = dict(type='CocoMetric', ann_file=str(tmp_path / 'gone.json'))
    with pytest.raises(UserError, match=r'val data: annotation file .*gone\.json'):
        check_data(Config(dict(val_evaluator=[metric])), ('val',))


def test_what_is_no_file_or_no_folder_is_refused(tmp_path):
    os.mkfifo(tmp_path / 'pipe.json')
    for dataset, says in (
        (dict(ann_file=str(tmp_path)), 'is not the expected annotation file'),
        (dict(ann_file=str(tmp_path / 'pipe.json')), 'is not the expected annotation file'),
        (dict(data_root=str(tmp_path / 'pipe.json')), 'is not the expected folder'),
    ):
        with pytest.raises(UserError, match=says):
            check_data(Config(dict(train_dataloader=dict(dataset=dataset))), ('train',))


@pytest.fixture
def evaluated(annotations, tmp_path):
    """A config whose evaluator reads another file than its dataset: changed as a test says."""

    def build(change) -> Config:
        cfg = annotations(SHAPES)
        path = tmp_path / 'shapes/coco/annotations/instances_val2017.json'
        content = json.loads(path.read_text())
        change(content)
        cfg.val_evaluator.ann_file = str(tmp_path / 'other.json')
        (tmp_path / 'other.json').write_text(json.dumps(content))
        return cfg

    return build


def test_an_evaluator_reads_a_copy_of_the_annotations(evaluated):
    check_classes(evaluated(lambda content: content.update(info='a copy')), ('val',))


@pytest.mark.parametrize(
    ('change', 'says'),
    [
        (lambda content: content['images'].pop(), 'has other images than .*val2017'),
        (lambda content: content['images'][0].update(id=999), 'has other images than'),
        (lambda content: content['categories'][0].update(id=9), 'has other categories than'),
        (lambda content: content['annotations'][0].pop('area'), '1 annotations cannot be evalua'),
        (lambda content: content['annotations'][0].update(segmentation=[[1e9] * 6]), 'mask is br'),
        (lambda content: content.update(images=3), 'is no COCO annotation file'),
    ],
)
def test_an_evaluator_that_reads_others_is_refused(evaluated, change, says):
    with pytest.raises(UserError, match=rf'other\.json.*{says}'):
        check_classes(evaluated(change), ('val',))


def test_masks_are_checked_where_only_the_evaluator_reads_them(evaluated, tmp_path):
    cfg = evaluated(lambda content: content['annotations'][0].update(segmentation=[[1e300] * 6]))
    cfg.val_dataloader.dataset.ann_file = str(tmp_path / 'other.json')
    check_classes(cfg, ('val',))  # the dataset will look at them
    cfg.val_dataloader.dataset.pipeline = []
    with pytest.raises(UserError, match='mask is broken'):
        check_classes(cfg, ('val',))
    cfg.val_evaluator.metric = 'bbox'
    check_classes(cfg, ('val',))


def test_a_config_without_validation_passes():
    check_data(Config(dict(val_dataloader=None, val_evaluator=None)), ('val',))


@pytest.fixture
def annotations(tmp_path, shapes_root):
    """A copy of the shapes whose training annotations are rewritten with other categories."""
    root = tmp_path / 'shapes'
    shutil.copytree(shapes_root, root)
    path = root / 'coco/annotations/instances_train2017.json'

    def rewrite(names: list[str], categories_first: bool = False) -> Config:
        content = json.loads(path.read_text())
        del content['categories']
        categories = [dict(id=i, name=name) for i, name in enumerate(names, start=1)]
        if categories_first:
            content = dict(categories=categories) | content
        else:
            content = content | dict(categories=categories)
        path.write_text(json.dumps(content))
        return detector(root)

    return rewrite


def detector(root, **options) -> Config:
    environment.require('mmdet.datasets')
    return load_config(DETECTOR, {'data_root': root} | options)


SHAPES = ['circle', 'square', 'triangle']


@pytest.mark.parametrize('categories_first', [False, True])
def test_the_classes_of_the_annotations_pass(annotations, categories_first):
    check_classes(annotations(SHAPES, categories_first), ALL)


@pytest.mark.parametrize(
    ('names', 'says'),
    [
        ([*SHAPES, 'star'], r'the 4 classes \(circle, square, triangle, star\)'),
        (['circle', 'square', 'tri'], r'the 3 classes \(circle, square, tri\)'),
        (['circle', 'square'], r'the 2 classes \(circle, square\)'),
        (['square', 'circle', 'triangle'], r'the 3 classes .*in another order'),
    ],
)
def test_other_classes_in_the_annotations_are_refused_with_both_lists(annotations, names, says):
    with pytest.raises(UserError, match=rf'train2017\.json has {says}') as error:
        check_classes(annotations(names), ALL)
    assert 'the config the 3 classes (circle, square, triangle)' in str(error.value)
    assert f'num_classes={len(names)}' in str(error.value)


def test_categories_are_found_beside_others_of_that_name(annotations, tmp_path):
    cfg = annotations(SHAPES)
    path = tmp_path / 'shapes/coco/annotations/instances_train2017.json'
    content = json.loads(path.read_text())
    for extra in ({'categories': 'of a tool'}, [{'categories': [{'name': 'other'}]}]):
        path.write_text(json.dumps(content | dict(extra=extra)))
        check_classes(cfg, ALL)


@pytest.mark.parametrize(
    'content',
    [
        '',
        '[]',
        '{"categories": 3}',
        '{"images": [',
        f'{{"categories": {"[" * 100_000}',
        f'{{"categories": [{{"name": {"1" * 5000}}}]}}',
        '{"images": [], "categories": [{"id": 1, "name": ["circle"]}]}',
    ],
)
def test_annotations_that_are_none_are_refused(shapes_root, tmp_path, content):
    (tmp_path / 'broken.json').write_text(content)
    cfg = detector(shapes_root)
    cfg.train_dataloader.dataset.ann_file = str(tmp_path / 'broken.json')
    with pytest.raises(UserError, match=r'broken\.json is no COCO annotation file'):
        check_classes(cfg, ('train',))


@pytest.mark.parametrize('head', ['bbox_head', 'mask_head'])
def test_a_head_for_another_number_of_classes_is_refused(shapes_root, head):
    cfg = detector(shapes_root, **{f'model.roi_head.{head}.num_classes': 80})
    message = rf'model\.roi_head\.{head}\.num_classes=80, but the train dataset has 3 classes \(cir'
    with pytest.raises(UserError, match=message):
        check_classes(cfg, ALL)


def test_a_segmentor_for_another_number_of_classes_is_refused(shapes_root):
    environment.require('mmseg.datasets')
    cfg = load_config(SEGMENTOR, {'data_root': shapes_root})
    check_classes(cfg, ALL)
    cfg.model.decode_head.num_classes = 3
    with pytest.raises(UserError, match=r'decode_head\.num_classes=3, .* 4 classes \(background'):
        check_classes(cfg, ALL)


def test_the_real_configs_have_heads_for_their_datasets(tmp_path):
    annotated = tmp_path / 'annotations'
    annotated.mkdir()
    environment.require('mmdet.datasets')
    from mmdet.datasets import CocoDataset

    categories = [dict(name=name) for name in CocoDataset.METAINFO['classes']]
    for split in ('train', 'val'):
        path = annotated / f'instances_{split}2017.json'
        path.write_text(json.dumps(dict(images=[], categories=categories)))
    config = ROOT / 'configs/mask_rcnn_xcit_s12_8_3x.py'
    check_classes(load_config(config, {'data_root': tmp_path}), ALL)
    environment.require('mmseg.datasets')
    check_classes(load_config(ROOT / 'configs/upernet_xcit_s12_8_160k.py'), ALL)


def test_one_class_that_is_no_tuple_is_refused(shapes_root):
    cfg = detector(shapes_root)
    cfg.train_dataloader.dataset.metainfo = dict(classes='circle')
    with pytest.raises(UserError, match=r"classes='circle' is neither a tuple"):
        check_classes(cfg, ('train',))


def test_classes_in_a_file_are_read_as_mmengine_does(shapes_root, tmp_path):
    cfg = detector(shapes_root)
    cfg.train_dataloader.dataset.metainfo = dict(classes=str(tmp_path / 'classes.txt'))
    (tmp_path / 'classes.txt').write_text('circle\nsquare\ntriangle\n')
    check_classes(cfg, ('train',))
    (tmp_path / 'classes.txt').write_text('circle\nsquare\n')
    with pytest.raises(UserError, match=r'the config the 2 classes'):
        check_classes(cfg, ('train',))


def test_heads_that_tell_other_things_apart_pass(shapes_root):
    cfg = detector(shapes_root)
    cfg.model.roi_head.bbox_head.update(type='GroundingHead', num_classes=256)  # words
    check_classes(cfg, ALL)
