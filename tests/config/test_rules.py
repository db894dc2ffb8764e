"""What a run refuses before anything is built: values, missing data, heads for other classes."""

import os
import shutil

import pytest
from helpers import ROOT
from mmengine.config import Config
from mmengine.registry import DATASETS, Registry

from xcit_mm import UserError
from xcit_mm.base import environment
from xcit_mm.config.adapt import adapt, adapt_for_test
from xcit_mm.config.channel_rules import check_image_channels
from xcit_mm.config.channel_rules import check_map_channels as check_maps
from xcit_mm.config.data_rules import check_classes, check_data
from xcit_mm.config.load import load_config
from xcit_mm.config.rules import (
    check_class_weights,
    check_counts,
    check_errors,
    check_recipe,
    check_single_images,
    require_parts,
)

REAL, UPERNET = (
    ROOT / f'configs/{name}.py' for name in ('mask_rcnn_xcit_s12_8_3x', 'upernet_xcit_t12_16_160k')
)
DETECTOR, SEM_FPN, PANOPTIC, DINO, BANDS = (
    ROOT / f'configs/{name}_shapes.py'
    for name in (
        *('mask_rcnn_xcit_n12_16', 'sem_fpn_xcit_n12_16', 'mask2former_panoptic_xcit_n12_16'),
        *('dino_xcit_n12_16', 'sem_fpn_xcit_n12_16_13bands'),
    )
)
ALL = ('train', 'val', 'test')
HEAD = 'model.panoptic_head'
MEAN, STD, TYPE, SWAP = (
    f'model.data_preprocessor.{name}' for name in ('mean', 'std', 'type', 'bgr_to_rgb')
)
SEVERAL = {'model.backbone.in_channels': 13}
THIRD = 'train_dataloader.dataset.pipeline.2'
SEGMENTOR = 'SegDataPreProcessor'
INNER = dict(type='RandomApply', transforms=dict(type='Pad'))
UINT16 = {  # three bands, which it would cut to 255
    'model.backbone.in_channels': 3,
    **{f'{split}_dataloader.dataset.pipeline.0.channels': 3 for split in ALL},
    f'{THIRD}.type': 'PhotoMetricDistortion',
}
NARROW = {'in_channels': [192] * 4}
AUXILIARY = 'model.auxiliary_head.in_channels'
EMA = dict(type='EMAHook', momentum=1.5)
WEIGHTS = {f'{HEAD}.loss_cls.class_weight': [1.0] * 4}


def check_images(cfg):
    check_image_channels(cfg, ALL)


@pytest.mark.parametrize(
    ('check', 'path', 'options', 'message'),
    [
        *(
            (check_counts, REAL, {name: value}, rf'{name}={value!r} is not a positive integer')
            for name in ('train_cfg.max_iters', 'train_dataloader.batch_size')
            for value in ('abc', 0, 1.5)
        ),
        (check_recipe, REAL, {'default_hooks.ema': dict(momentum=0.1)}, r'ema has no type: add'),
        (check_recipe, REAL, {'default_hooks.ema': EMA}, r'hooks\.ema\.momentum=1\.5 is not betw'),
        (check_recipe, REAL, {'custom_hooks': [EMA]}, r'hooks\.0\.momentum=1\.5 is not between'),
        (check_class_weights, PANOPTIC, WEIGHTS, r'4 numbers: write 5, one for'),
        (check_maps, REAL, {'model.neck': NARROW}, r'neck.in_.*=\[192, .* in_channels=\[384, 384'),
        (check_maps, PANOPTIC, {HEAD: NARROW}, r'head.in_.*=\[192, .* in_channels=\[128, 128'),
        (check_maps, UPERNET, {AUXILIARY: 384}, r'head.in_channels=384: .* in_channels=192'),
        (
            check_maps,
            DINO,
            {'model.backbone.start_level': 1},
            r'for 2 maps, .*=1 returns 3: .*=\[128',
        ),
        (check_images, BANDS, {'model.backbone.in_channels': 4}, r'13 channels, but .*channels=4'),
        (check_images, REAL, SEVERAL, r'pipeline\.0: LoadImage loads 3 channels, .*=13: write'),
        (check_images, BANDS, {MEAN: [1.0] * 3}, r'the mean of Mul.* has 3 numbers, .*channels=13'),
        (check_images, BANDS, {STD: [1.0] * 4}, r'the std .* has 4 .*: write 13 numbers'),
        (check_images, BANDS, {TYPE: SEGMENTOR}, rf"has 13 .*type='Multib.*', base='{SEGMENTOR}"),
        (check_images, BANDS, {SWAP: True}, 'bgr_to_rgb=True would change the order of the bands'),
        (check_images, BANDS, {f'{THIRD}.type': 'CLAHE'}, rf'{THIRD}: CLAHE .* 13 chan.*: remove'),
        (check_images, BANDS, {THIRD: INNER}, rf'{THIRD}\.transforms: Pad does not take 13 chan'),
        (check_images, BANDS, UINT16, rf'{THIRD}: PhotoMetric.* does not take 3 channels of any'),
    ],
)
def test_values_that_do_not_fit_are_refused(check, path, options, message):
    with pytest.raises(UserError, match=message):
        check(load_config(path, options))


@pytest.mark.parametrize(
    ('path', 'options'),
    [
        (BANDS, {}),
        (REAL, {}),
        (UPERNET, {}),  # with PhotoMetricDistortion
        (BANDS, {MEAN: [1.0], STD: [1.0]}),
        (REAL, SEVERAL | {'model.backbone.type': 'ResNet'}),  # the classes of others are theirs
    ],
)
def test_channels_that_agree_pass(path, options):
    check_images(load_config(path, options))


SINGLE = {'train_dataloader.batch_size': 1}
NORM = 'model.decode_head.norm_cfg.type'


@pytest.mark.parametrize(
    ('path', 'options', 'on_gpus', 'needs_two'),
    [
        (UPERNET, {}, False, False),
        (UPERNET, SINGLE, False, True),
        (UPERNET, SINGLE | {NORM: 'GN'}, False, False),
        (REAL, SINGLE, False, False),
        (UPERNET, SINGLE | {NORM: 'BN', 'sync_bn': 'torch'}, True, False),
        (UPERNET, SINGLE | {NORM: 'SyncBN', 'sync_bn': None}, True, False),
        (UPERNET, SINGLE | {NORM: 'BN', 'sync_bn': None}, True, True),
    ],
)
def test_one_image_for_the_batchnorm_of_one_pixel_is_refused_unless_it_is_synchronized(
    monkeypatch, path, options, on_gpus, needs_two
):
    monkeypatch.setattr('torch.cuda.is_available', lambda: on_gpus)
    cfg = load_config(path, options, launcher='pytorch' if on_gpus else 'none')
    if not needs_two:
        check_single_images(cfg)
        return
    with pytest.raises(UserError, match=r'batch_size=1: the BatchNorm of UPerHead .*needs 2 ima'):
        check_single_images(cfg)


def test_a_part_of_a_config_is_refused_with_what_is_missing():
    cfg = load_config(ROOT / 'configs/_base_/mask_rcnn_xcit.py')
    with pytest.raises(UserError, match=r'mask_rcnn_xcit\.py has no train_dataloader'):
        require_parts(cfg, 'train')


@pytest.mark.parametrize(
    ('config', 'removed', 'split', 'kind'),
    [
        (DETECTOR, 'coco', 'train', 'folder'),
        (DETECTOR, 'coco/annotations/instances_train2017.json', 'train', 'annotation file'),
        (SEM_FPN, 'ade/annotations/validation', 'val', 'folder'),
    ],
)
def test_missing_data_is_named_with_its_path_and_the_remedy(root, config, removed, split, kind):
    cfg = load_config(config, {'data_root': root})
    check_data(cfg, ALL)
    target = root / removed
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    with pytest.raises(UserError) as error:
        check_data(cfg, ALL)
    message = str(error.value)
    assert message.startswith(f'{split} data: {kind} {target} is missing')
    assert f'make_shapes.py {root}/ draws it' in message


@pytest.mark.parametrize('options', [{}, {'data_root': 'elsewhere'}], ids=['as it is', 'moved'])
@pytest.mark.parametrize('own_root', ['', "data_root = 'data/mine/'\n"])
@pytest.mark.parametrize('base', [DETECTOR, REAL])
def test_the_remedy_of_a_config_is_not_given_for_other_data(tmp_path, base, own_root, options):
    config = tmp_path / 'own.py'
    dataset = "train_dataloader = dict(dataset=dict(data_root='data/mine/'))\n"
    config.write_text(f"_base_ = '{base}'\n{own_root}{dataset}")
    with pytest.raises(UserError, match=r'/mine|elsewhere.* is missing.*; point to it with'):
        check_data(load_config(config, options), ('train',))


def test_wrapped_datasets_evaluators_and_the_kind_of_a_path_are_checked(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    inner = dict(type='CocoDataset', data_root=str(tmp_path), ann_file='gone.json')
    joined = dict(type='ConcatDataset', datasets=[dict(type='RepeatDataset', dataset=inner)])
    for dataset, ann_file, message in (
        (joined, None, r'gone\.json is missing.*data_root=DIR'),
        (None, tmp_path / 'gone.json', r'gone\.json is missing.*data_root=DIR'),
        (None, tmp_path, 'is not the expected annotation file'),
        (dict(inner, ann_file='pipe'), None, 'is not the expected annotation file'),
        (dict(data_root=str(tmp_path / 'pipe')), None, 'is not the expected folder'),
    ):
        metric = dict(type='CocoMetric', ann_file=str(ann_file)) if ann_file else None
        cfg = Config(dict(val_dataloader=dict(dataset=dataset), val_evaluator=metric))
        with pytest.raises(UserError, match=f'val data: .*{message}'):
            check_data(cfg, ('val',))


def test_an_evaluator_has_to_read_what_its_dataset_checks(shapes_root, tmp_path):
    cfg = load_config(PANOPTIC, {'data_root': shapes_root})
    check_data(cfg, ('val',))
    metric = cfg.val_evaluator[0]
    metric.ann_file = shutil.copy(metric.ann_file, tmp_path / 'panoptic.json')
    with pytest.raises(UserError, match=r'panoptic\.json is not the annotation file of the val'):
        check_data(cfg, ('val',))

    cfg = load_config(DETECTOR, {'data_root': shapes_root})
    (tmp_path / 'link.json').symlink_to(cfg.val_evaluator.ann_file)
    cfg.val_evaluator.ann_file = str(tmp_path / 'link.json')
    check_data(cfg, ('val',))
    cfg.val_dataloader.dataset.pipeline = []
    with pytest.raises(UserError, match='needs masks, but the pipeline of the val dataset'):
        check_data(cfg, ('val',))
    cfg.val_evaluator.metric = 'bbox'
    check_data(cfg, ('val',))
    cfg.val_evaluator.ann_file = shutil.copy(cfg.val_evaluator.ann_file, tmp_path / 'copy.json')
    with pytest.raises(UserError, match=r'copy\.json is not the annotation file of the val data'):
        check_data(cfg, ('val',))


def detector(root, config: str = DETECTOR, **options) -> Config:
    environment.require('mmdet.datasets')
    environment.require('xcit_mm.data.datasets.coco')
    return load_config(config, {'data_root': root} | options)


@pytest.mark.parametrize(
    ('task', 'head', 'name', 'classes'),
    [
        ('mask_rcnn', 'roi_head.bbox_head', 'num_classes', r'3 classes \(cir'),
        ('mask_rcnn', 'roi_head.mask_head', 'num_classes', '3 classes'),
        ('cascade_mask_rcnn', 'roi_head.bbox_head.2', 'num_classes', '3 classes'),
        ('dino', 'bbox_head', 'num_classes', '3 classes'),
        ('mask2former_instance', 'panoptic_fusion_head', 'num_things_classes', '3 classes'),
        ('mask2former_panoptic', 'panoptic_head', 'num_stuff_classes', r'1 classes \(background'),
    ],
)
def test_a_head_for_another_number_of_classes_is_refused(shapes_root, task, head, name, classes):
    config = f'configs/{task}_xcit_n12_16_shapes.py'
    check_classes(detector(shapes_root, config), ALL)
    cfg = detector(shapes_root, config, **{f'model.{head}.{name}': 80})
    message = rf'model\.{head}\.{name}=80, but the train dataset has {classes}'
    with pytest.raises(UserError, match=message):
        check_classes(cfg, ALL)
    if name == 'num_classes':
        cfg.merge_from_dict({f'model.{head}.type': 'GroundingHead'})  # which predicts words
        check_classes(cfg, ALL)


def test_a_subclass_of_the_coco_dataset_is_checked_like_ours(shapes_root):
    cfg = detector(shapes_root)
    dataset = cfg.val_dataloader.dataset
    dataset.type = 'DeepFashionDataset'
    check_classes(cfg, ('val',))
    dataset.metainfo.classes = dataset.metainfo.classes[::-1]
    with pytest.raises(UserError, match='in another order'):
        check_classes(cfg, ('val',))


def test_classes_of_segmentors_and_of_coco_fit_their_heads(shapes_root):
    check_classes(detector('.') and load_config(REAL), ALL)
    environment.require('mmseg.datasets')
    check_classes(load_config(ROOT / 'configs/upernet_xcit_s12_8_160k.py'), ALL)
    cfg = load_config(SEM_FPN, {'data_root': shapes_root})
    check_classes(cfg, ALL)
    cfg.model.decode_head.num_classes = 3
    with pytest.raises(UserError, match=r'decode_head\.num_classes=3, .* 4 classes \(background'):
        check_classes(cfg, ALL)


def test_classes_are_a_tuple_or_a_file(shapes_root, tmp_path):
    cfg = detector(shapes_root)
    cfg.train_dataloader.dataset.metainfo = dict(classes='circle')
    with pytest.raises(UserError, match=r"classes='circle' is neither a tuple"):
        check_classes(cfg, ('train',))
    cfg.train_dataloader.dataset.metainfo = dict(classes=str(tmp_path / 'classes.txt'))
    (tmp_path / 'classes.txt').write_text('circle\nsquare\ntriangle\n')
    check_classes(cfg, ('train',))
    (tmp_path / 'classes.txt').write_text('circle\nsquare\n')
    with pytest.raises(UserError, match=r'dataset has 2 classes'):
        check_classes(cfg, ('train',))


def test_the_classes_of_a_segmentor_are_checked_without_mmdet(monkeypatch):
    """Its import takes seconds, and prints what it cannot import."""
    get, names = Registry.get, []
    monkeypatch.setattr(Registry, 'get', lambda self, key: names.append(key) or get(self, key))
    environment.require_framework('mmseg')
    check_classes(load_config(SEM_FPN), ALL)
    assert names and not [name for name in names if name.startswith('mmdet.')]


def test_errors_that_no_metric_counts_are_refused():
    cfg = load_config(ROOT / 'configs/heights_xcit_n12_16_shapes.py')
    adapt_for_test(cfg, 'a.pth', errors_dir='counted')
    with pytest.raises(UserError, match=r'--errors counted: HeightMetric of test_evaluator counts'):
        check_errors(cfg)


@pytest.mark.parametrize(
    ('kind', 'metainfo', 'message'),
    [
        ('BaseSegDataset', dict(classes=('a', 'b'), palette=[[0, 0, 0]] * 4), '4 colors for 2 cl'),
        ('BaseSegDataset', dict(palette=[]), 'the dataset has no classes'),
        ('BaseSegDataset', 'classes.txt', "metainfo='classes.txt' is not a dict"),
        ('ADE20KDataset', dict(classes=('wall', 'pig')), 'pig is not one of the 150 classes of'),
        ('ADE20KDataset', dict(classes=('wall', 'sky')), None),
        ('BaseSegDataset', dict(classes=('a', 'b'), palette=None), None),
    ],
)
def test_what_a_dataset_of_mmseg_cannot_be_built_from_is_refused(kind, metainfo, message):
    cfg = load_config('configs/sem_fpn_xcit_n12_16_shapes.py')
    cfg.model.decode_head.num_classes = 2
    dataset = cfg.train_dataloader.dataset
    dataset.type, dataset.metainfo = kind, metainfo
    adapt(cfg)
    environment.require_framework('mmseg')
    if message is not None:
        with pytest.raises(UserError, match=f'train data: .*{message}'):
            check_classes(cfg, ('train',))
        return
    check_classes(cfg, ('train',))
    with DATASETS.switch_scope_and_registry('mmseg') as registry:
        built = registry.build(dict(cfg.train_dataloader.dataset, lazy_init=True))
    assert len(built.metainfo['palette']) == 2
