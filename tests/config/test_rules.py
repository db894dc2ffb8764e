"""What a run refuses before anything is built."""

import pytest
from helpers import ROOT

from xcit_mm import UserError
from xcit_mm.config.channel_rules import check_image_channels
from xcit_mm.config.channel_rules import check_map_channels as check_maps
from xcit_mm.config.load import load_config
from xcit_mm.config.rules import (
    check_class_weights,
    check_counts,
    check_recipe,
    check_single_images,
    require_parts,
)

REAL, UPERNET, PANOPTIC, DINO, BANDS = (
    ROOT / f'configs/{name}.py'
    for name in (
        *('mask_rcnn_xcit_s12_8_3x', 'upernet_xcit_t12_16_160k'),
        *('mask2former_panoptic_xcit_s12_8_50e', 'dino_xcit_n12_16_shapes'),
        'sem_fpn_xcit_n12_16_13bands_shapes',
    )
)
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
    **{f'{split}_dataloader.dataset.pipeline.0.channels': 3 for split in ('train', 'val', 'test')},
    f'{THIRD}.type': 'PhotoMetricDistortion',
}
NARROW = {'in_channels': [192] * 4}
AUXILIARY = 'model.auxiliary_head.in_channels'
EMA = dict(type='EMAHook', momentum=1.5)
WEIGHTS = {f'{HEAD}.loss_cls.class_weight': [1.0] * 133}


def check_images(cfg):
    check_image_channels(cfg, ('train', 'val', 'test'))


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
        (check_class_weights, PANOPTIC, WEIGHTS, r'133 numbers: write 134, one for'),
        (check_maps, REAL, {'model.neck': NARROW}, r'neck.in_.*=\[192, .* in_channels=\[384, 384'),
        (check_maps, PANOPTIC, {HEAD: NARROW}, r'head.in_.*=\[192, .* in_channels=\[384, 384'),
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
