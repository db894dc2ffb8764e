"""What a run refuses, before anything is built or while it is."""

import pytest
from helpers import ROOT

from xcit_mm import UserError
from xcit_mm.config.channel_rules import check_image_channels, check_map_channels
from xcit_mm.config.load import load_config
from xcit_mm.config.rules import (
    check_class_weights,
    check_counts,
    check_recipe,
    check_single_images,
    require_parts,
)

REAL = ROOT / 'configs/mask_rcnn_xcit_s12_8_3x.py'
UPERNET = ROOT / 'configs/upernet_xcit_t12_16_160k.py'
PANOPTIC = ROOT / 'configs/mask2former_panoptic_xcit_s12_8_50e.py'
SINGLE = {'train_dataloader.batch_size': 1}
NORM = 'model.decode_head.norm_cfg.type'


@pytest.mark.parametrize('name', ['train_cfg.max_iters', 'train_dataloader.batch_size'])
@pytest.mark.parametrize('value', ['abc', 0, 1.5])
def test_a_number_that_is_not_a_count_is_refused(name, value):
    with pytest.raises(UserError, match=rf'{name}={value!r} is not a positive integer'):
        check_counts(load_config(REAL, {name: value}))


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
    ('path', 'part', 'channels', 'message'),
    [
        (REAL, 'neck', [192] * 4, r'neck.in_channels=\[192, .* in_channels=\[384, 384'),
        (UPERNET, 'auxiliary_head', 384, r'head.in_channels=384: .* in_channels=192'),
        (
            PANOPTIC,
            'panoptic_head',
            [192] * 4,
            r'head.in_channels=\[192, .* in_channels=\[384, 384',
        ),
    ],
)
def test_channels_that_the_backbone_does_not_have_are_refused(path, part, channels, message):
    cfg = load_config(path)
    cfg.model[part].in_channels = channels
    with pytest.raises(UserError, match=message):
        check_map_channels(cfg)


DINO = ROOT / 'configs/dino_xcit_n12_16_shapes.py'
WEIGHTS = 'model.panoptic_head.loss_cls.class_weight'
EMA = dict(type='EMAHook', momentum=1.5)


@pytest.mark.parametrize(
    ('path', 'options', 'message'),
    [
        (DINO, {'model.backbone.start_level': 1}, r'is for 2 maps, .*=1 gives 3: write .*=\[128, '),
        (PANOPTIC, {WEIGHTS: [1.0] * 133}, r'class_weight has 133 numbers: write 134, one for'),
        (REAL, {'default_hooks.ema': dict(momentum=0.1)}, r'default_hooks\.ema has no type: add'),
        (REAL, {'default_hooks.ema': EMA}, r'default_hooks\.ema\.momentum=1\.5 is not between'),
        (REAL, {'custom_hooks': [EMA]}, r'custom_hooks\.0\.momentum=1\.5 is not between'),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(path, options, message):
    cfg = load_config(path, options)
    with pytest.raises(UserError, match=message):
        check_map_channels(cfg), check_class_weights(cfg), check_recipe(cfg)


BANDS = ROOT / 'configs/sem_fpn_xcit_n12_16_13bands_shapes.py'
SEVERAL = {'model.backbone.in_channels': 13}
MEAN, STD, TYPE, SWAP = (
    f'model.data_preprocessor.{name}' for name in ('mean', 'std', 'type', 'bgr_to_rgb')
)
THIRD = 'train_dataloader.dataset.pipeline.2'
INNER = dict(type='RandomApply', transforms=dict(type='Pad'))
UINT16 = {  # three bands, which it would cut to 255
    'model.backbone.in_channels': 3,
    **{f'{split}_dataloader.dataset.pipeline.0.channels': 3 for split in ('train', 'val')},
    f'{THIRD}.type': 'PhotoMetricDistortion',
}


@pytest.mark.parametrize(
    ('path', 'options', 'message'),
    [
        (BANDS, {'model.backbone.in_channels': 4}, r'loads 13 channels, but .*in_channels=4'),
        (REAL, SEVERAL, r'pipeline\.0: LoadImage loads 3 channels, but .*in_channels=13: write'),
        (BANDS, {MEAN: [1.0] * 3}, r'the mean of MultibandP.* has 3 numbers, but .*channels=13'),
        (BANDS, {STD: [1.0] * 4}, r'the std .* has 4 .*: write 13 numbers'),
        (
            BANDS,
            {TYPE: 'SegDataPreProcessor'},
            r"SegDataPreProcessor has 13 .*type='MultibandPreprocessor', base='SegDataPreProcess",
        ),
        (BANDS, {SWAP: True}, 'bgr_to_rgb=True would change the order of the bands'),
        (
            BANDS,
            {f'{THIRD}.type': 'CLAHE'},
            rf'{THIRD}: CLAHE does not take 13 chan.*: remove it',
        ),
        (BANDS, {THIRD: INNER}, rf'{THIRD}\.transforms: Pad does not take 13 channels'),
        (BANDS, UINT16, rf'{THIRD}: PhotoMetricDistortion does not take 3 channels of any type'),
    ],
)
def test_channels_of_the_images_that_the_model_does_not_take_are_refused(path, options, message):
    with pytest.raises(UserError, match=message):
        check_image_channels(load_config(path, options), ('train', 'val'))


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
    check_image_channels(load_config(path, options), ('train', 'val', 'test'))
