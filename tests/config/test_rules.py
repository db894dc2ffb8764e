"""What a run refuses before anything is built: missing data, other classes, other channels."""

import shutil

import pytest
from helpers import ROOT
from mmengine.config import Config

from xcit_mm import UserError
from xcit_mm.base import environment
from xcit_mm.config.load import load_config
from xcit_mm.config.rules import check, check_backbone, check_classes, check_data, require_parts

REAL, UPERNET = (
    ROOT / f'configs/{name}.py' for name in ('mask_rcnn_xcit_s12_8_3x', 'upernet_xcit_t12_16_160k')
)
DETECTOR, SEM_FPN, PANOPTIC, DINO = (
    ROOT / f'configs/{name}_shapes.py'
    for name in (
        *('mask_rcnn_xcit_n12_16', 'sem_fpn_xcit_n12_16', 'mask2former_panoptic_xcit_n12_16'),
        *('dino_xcit_n12_16',),
    )
)
ALL = ('train', 'val', 'test')
HEAD = 'model.panoptic_head'
NARROW = {'in_channels': [192] * 4}
AUXILIARY = 'model.auxiliary_head.in_channels'


@pytest.mark.parametrize(
    ('path', 'options', 'message'),
    [
        (REAL, {'model.neck': NARROW}, r'neck.in_.*=\[192, .* in_channels=\[384, 384'),
        (PANOPTIC, {HEAD: NARROW}, r'head.in_.*=\[192, .* in_channels=\[128, 128'),
        (UPERNET, {AUXILIARY: 384}, r'head.in_channels=384: .* in_channels=192'),
        (DINO, {'model.backbone.start_level': 1}, r'returns 3 maps with .*=\[128, 128, 128\]'),
    ],
)
def test_channels_that_the_backbone_does_not_return_are_refused(path, options, message):
    with pytest.raises(UserError, match=message):
        check_backbone(load_config(path, options))


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


def test_the_remedy_of_a_config_is_not_given_for_other_data():
    own = {'train_dataloader.dataset.data_root': 'data/mine/'}
    with pytest.raises(UserError, match=r'data/mine .*is missing.*; point to it with'):
        check_data(load_config(REAL, own), ('train',))


def test_wrapped_datasets_and_evaluators_are_checked(tmp_path):
    inner = dict(type='CocoDataset', data_root=str(tmp_path), ann_file='gone.json')
    joined = dict(type='ConcatDataset', datasets=[dict(type='RepeatDataset', dataset=inner)])
    metric = dict(type='CocoMetric', ann_file=str(tmp_path / 'gone.json'))
    for dataset, evaluator in ((joined, None), (None, metric)):
        cfg = Config(dict(val_dataloader=dict(dataset=dataset), val_evaluator=evaluator))
        with pytest.raises(UserError, match=r'val data: .*gone\.json is missing.*data_root=DIR'):
            check_data(cfg, ('val',))


def test_an_evaluator_has_to_read_what_its_dataset_checks(shapes_root, tmp_path):
    cfg = load_config(DETECTOR, {'data_root': shapes_root})
    (tmp_path / 'link.json').symlink_to(cfg.val_evaluator.ann_file)
    cfg.val_evaluator.ann_file = str(tmp_path / 'link.json')
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
        ('cascade_mask_rcnn', 'roi_head.bbox_head.2', 'num_classes', '3 classes'),
        ('dino', 'bbox_head', 'num_classes', '3 classes'),
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


def test_a_folder_without_an_image_that_mmseg_reads_is_refused(shapes_root):
    options = {'data_root': shapes_root, 'train_dataloader.dataset.img_suffix': '.bmp'}
    environment.require_framework('mmseg')
    with pytest.raises(UserError, match=r'training has no images \*\.bmp: set img_suffix'):
        check_data(load_config(SEM_FPN, options), ('train',))


def test_layer_decay_is_not_ignored_without_its_constructor():
    options = {'optim_wrapper.paramwise_cfg.layer_decay': 0.8}
    cfg = load_config('configs/sem_fpn_xcit_n12_16_shapes.py', options)
    with pytest.raises(UserError, match=r'layer_decay=0\.8 needs optim_wrapper\.constructor='):
        check(cfg, 'train')
