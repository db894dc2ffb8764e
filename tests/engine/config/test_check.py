"""What a run refuses before anything is built."""

import pytest
from helpers import ROOT

from xcit_mm import UserError
from xcit_mm.engine.config.check import (
    check_batch_size,
    check_channels,
    check_limits,
    require_parts,
)
from xcit_mm.engine.config.load import load_config

REAL = ROOT / 'configs/mask_rcnn_xcit_s12_8_3x.py'


@pytest.mark.parametrize('value', ['abc', 0, 1.5])
def test_max_iters_that_is_not_a_count_is_refused(value):
    with pytest.raises(UserError, match=rf'max_iters={value!r} is not a positive integer'):
        check_limits(load_config(REAL, {'train_cfg.max_iters': value}))


def test_one_image_for_the_batchnorm_of_one_pixel_is_refused():
    path = ROOT / 'configs/upernet_xcit_t12_16_160k.py'
    check_batch_size(load_config(path))
    with pytest.raises(UserError, match=r'batch_size=1: the BatchNorm of UPerHead .*needs 2 ima'):
        check_batch_size(load_config(path, {'train_dataloader.batch_size': 1}))
    check_batch_size(load_config(REAL, {'train_dataloader.batch_size': 1}))
    without_batch = {'train_dataloader.batch_size': 1, 'model.decode_head.norm_cfg.type': 'GN'}
    check_batch_size(load_config(path, without_batch))


@pytest.mark.parametrize(
    ('norm', 'sync_bn', 'synchronised'),
    [('BN', 'torch', True), ('SyncBN', None, True), ('BN', None, False)],
)
def test_one_image_for_each_gpu_is_enough_where_batchnorm_is_synchronised(
    monkeypatch, norm, sync_bn, synchronised
):
    monkeypatch.setattr('torch.cuda.is_available', lambda: True)
    options = {'train_dataloader.batch_size': 1, 'model.decode_head.norm_cfg.type': norm}
    path = ROOT / 'configs/upernet_xcit_t12_16_160k.py'
    cfg = load_config(path, options | {'sync_bn': sync_bn}, launcher='pytorch')
    if synchronised:
        check_batch_size(cfg)
    else:
        with pytest.raises(UserError, match='needs 2 images'):
            check_batch_size(cfg)


def test_a_part_of_a_config_is_refused_with_what_is_missing():
    cfg = load_config(ROOT / 'configs/_base_/mask_rcnn_xcit.py')
    with pytest.raises(UserError, match=r'mask_rcnn_xcit\.py has no train_dataloader'):
        require_parts(cfg, 'train')


@pytest.mark.parametrize(
    ('name', 'option', 'says'),
    [
        (
            'mask_rcnn_xcit_t12_16_3x',
            'neck',
            r'neck.in_channels=\[384, 384, 384, 384\]: .* in_channels=\[192, 192',
        ),
        ('upernet_xcit_t12_16_160k', 'auxiliary_head', r'head.in_channels=384: .* in_channels=192'),
    ],
)
def test_channels_that_the_backbone_does_not_have_are_refused(name, option, says):
    cfg = load_config(ROOT / f'configs/{name}.py')
    check_channels(cfg)
    part = cfg.model[option]
    if isinstance(part.in_channels, list):
        part.in_channels = tuple(part.in_channels)
        check_channels(cfg)
    part.in_channels = [384] * 4 if isinstance(part.in_channels, tuple) else 384
    with pytest.raises(UserError, match=says):
        check_channels(cfg)
