"""Every config loads on the installed stack, and the real recipe is the published one."""

import pytest
import torch
from conftest import ROOT
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner

from xcit_mm import XCiT, environment

CONFIGS = sorted((ROOT / 'configs').glob('*.py'))


@pytest.mark.parametrize('path', CONFIGS, ids=lambda p: p.stem)
def test_config_loads_and_its_model_builds(path):
    cfg = Config.fromfile(path)
    for part in ('models', 'datasets', 'evaluation', 'visualization'):
        environment.require(f'{cfg.default_scope}.{part}')
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    assert type(model.backbone).__name__ == 'XCiT'
    channels = model.backbone.patch_embed.proj[-1][0].out_channels
    assert cfg.model.neck.in_channels == [channels] * 4


def test_mask_rcnn_s12_8_is_the_published_model_and_recipe():
    cfg = Config.fromfile(ROOT / 'configs/mask_rcnn_xcit_s12_8_3x.py')
    environment.require('mmdet.models')
    init_default_scope('mmdet')
    model = MODELS.build(cfg.model)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(43.17, abs=0.01)
    assert model.backbone.out_indices == (3, 5, 7, 11)
    assert model.backbone.blocks[0].drop_path.p == 0.05

    assert cfg.train_cfg.max_epochs == 36
    assert cfg.train_dataloader.batch_size == 2
    assert cfg.auto_scale_lr.base_batch_size == 16
    warmup, steps = cfg.param_scheduler
    assert (warmup.type, warmup.start_factor, warmup.end) == ('LinearLR', 0.001, 500)
    assert (steps.type, steps.milestones, steps.gamma) == ('MultiStepLR', [27, 33], 0.1)
    assert cfg.optim_wrapper.type == 'AmpOptimWrapper'
    assert cfg.optim_wrapper.loss_scale == 'dynamic'
    assert 'clip_grad' not in cfg.optim_wrapper

    optim_wrapper = dict(cfg.optim_wrapper, type='OptimWrapper')
    optim_wrapper.pop('loss_scale')
    optimizer = Runner.build_optim_wrapper(BareRunner(model), optim_wrapper).optimizer
    assert isinstance(optimizer, torch.optim.AdamW)
    decay = {id(p): g['weight_decay'] for g in optimizer.param_groups for p in g['params']}
    for name, parameter in model.named_parameters():
        assert decay[id(parameter)] == (0.0 if 'norm' in name else 0.05), name
    assert {(g['lr'], g['betas']) for g in optimizer.param_groups} == {(1e-4, (0.9, 0.999))}


class BareRunner:
    """As much of a Runner as Runner.build_optim_wrapper asks for."""

    def __init__(self, model):
        self.model = model


def test_mask_rcnn_s12_8_augments_as_detr_does():
    cfg = Config.fromfile(ROOT / 'configs/mask_rcnn_xcit_s12_8_3x.py')
    multi_scale = [(side, 1333) for side in range(480, 801, 32)]
    flip, choice = cfg.train_pipeline[2:4]
    assert (flip.type, flip.prob) == ('RandomFlip', 0.5)
    (resize,), (first, crop, second) = choice.transforms
    assert [tuple(s) for s in resize.scales] == multi_scale
    assert [tuple(s) for s in first.scales] == [(400, 1333), (500, 1333), (600, 1333)]
    assert tuple(crop.crop_size) == (384, 600)
    assert [tuple(s) for s in second.scales] == multi_scale
    assert tuple(cfg.test_pipeline[1].scale) == (1333, 800)
    assert cfg.model.data_preprocessor.pad_size_divisor == 32


def test_the_config_of_the_readme_builds(tmp_path):
    readme = (ROOT / 'README.md').read_text()
    start = readme.index("_base_ = 'mmdet::")
    (tmp_path / 'own.py').write_text(readme[start : readme.index('```', start)])
    cfg = Config.fromfile(tmp_path / 'own.py')
    environment.require('mmdet.models')
    init_default_scope('mmdet')
    assert isinstance(MODELS.build(cfg.model).backbone, XCiT)
