"""Mask2Former's configs are the usual recipe of the head, and their models train and predict."""

import numpy as np
import pytest
import torch
from helpers import ROOT
from helpers.heads import losses_of, predict, without_gradient
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.structures import InstanceData, PixelData
from torch import nn

from xcit_mm.config.load import load_config
from xcit_mm.engine.build_model import build_model
from xcit_mm.environment import require_framework

LENGTHS = dict(instance='50e', panoptic='50e', semantic='160k')
SIZE = (96, 128)  # height and width of the images


def load(name: str) -> Config:
    cfg = load_config(ROOT / 'configs' / f'{name}.py')
    require_framework(cfg.default_scope)
    return cfg


@pytest.mark.parametrize(('task', 'end'), [('panoptic', 368750), ('semantic', 160000)])
def test_rates_decays_and_schedule_are_those_of_the_head(task, end):
    cfg = load(f'mask2former_{task}_xcit_s12_8_{LENGTHS[task]}')
    model = build_model(cfg, 'meta')
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper).optimizer
    assert isinstance(optimizer, torch.optim.AdamW)
    assert cfg.optim_wrapper.clip_grad == dict(max_norm=0.01)
    groups = {id(p): group for group in optimizer.param_groups for p in group['params']}
    norms = (nn.LayerNorm, nn.GroupNorm)
    of_norms = {id(p) for m in model.modules() if isinstance(m, norms) for p in m.parameters()}
    for name, parameter in model.named_parameters():
        group = groups[id(parameter)]
        assert group['lr'] == pytest.approx(1e-5 if name.startswith('backbone') else 1e-4), name
        embeddings = ('query_embed', 'query_feat', 'level_embed')
        is_free = id(parameter) in of_norms or any(e in name for e in embeddings)
        assert group['weight_decay'] == (0 if is_free else 0.05), name
    assert cfg.train_cfg.type == 'ResumableIterLoop'
    (scheduler,) = cfg.param_scheduler
    assert cfg.train_cfg.max_iters == scheduler.end == end
    assert not scheduler.by_epoch
    if task == 'panoptic':
        steps = dict(type='MultiStepLR', milestones=[327778, 355092], gamma=0.1)
    else:
        steps = dict(type='PolyLR', power=0.9, eta_min=0)
    assert scheduler == {**scheduler, **steps}
    assert cfg.train_dataloader.batch_size == 2
    assert cfg.auto_scale_lr == dict(enable=True, base_batch_size=16)


@pytest.mark.parametrize('task', ['instance', 'panoptic'])
def test_coco_is_seen_with_large_scale_jitter(task):
    cfg = load(f'mask2former_{task}_xcit_s12_8_50e')
    pipeline = cfg.train_dataloader.dataset.pipeline
    resize, crop = pipeline[3:5]
    assert (tuple(resize.scale), resize.ratio_range) == ((1024, 1024), (0.1, 2.0))
    assert tuple(crop.crop_size) == (1024, 1024) and crop.recompute_bbox
    (pad,) = cfg.model.data_preprocessor.batch_augments
    assert tuple(pad.size) == (1024, 1024)
    assert tuple(cfg.test_dataloader.dataset.pipeline[1].scale) == (1333, 800)
    assert cfg.train_dataloader.dataset.data_prefix.img == 'train2017/'


def small(name: str) -> nn.Module:
    """Build the narrow model of a task on a tiny backbone."""
    cfg = load(name)
    cfg.model.backbone.arch = dict(embed_dim=64, depth=4, num_heads=2, eta=1.0)
    cfg.model.backbone.out_indices = (0, 1, 2, 3)
    head = 'decode_head' if 'semantic' in name else 'panoptic_head'
    cfg.model[head].in_channels = [64] * 4
    model = build_model(cfg, 'cpu')
    model.init_weights()
    return model.train()


@pytest.mark.parametrize('task', LENGTHS)
def test_a_narrow_model_computes_losses_and_predicts(task):
    model = small(f'mask2former_{task}_xcit_n12_16_shapes')
    labels = torch.full((1, *SIZE), 3)  # background, in the order of panoptic data
    labels[:, 20:70, 30:90] = 2
    metainfo = dict(img_shape=SIZE, ori_shape=SIZE, scale_factor=(1.0, 1.0), img_id=0)
    if task == 'semantic':
        from mmseg.structures import SegDataSample

        model.data_preprocessor.size = SIZE
        sample = SegDataSample(metainfo=metainfo, gt_sem_seg=PixelData(data=labels))
    else:
        from mmdet.structures import DetDataSample
        from mmdet.structures.mask import BitmapMasks

        instances = InstanceData(
            bboxes=torch.tensor([[30.0, 20.0, 90.0, 70.0]]),
            labels=torch.tensor([2]),
            masks=BitmapMasks((labels == 2).byte().numpy(), *SIZE),
        )
        sample = DetDataSample(metainfo=metainfo, gt_instances=instances)
        if task == 'panoptic':
            sample.gt_sem_seg = PixelData(sem_seg=labels)
    images = list(torch.randint(0, 256, (2, 3, *SIZE), dtype=torch.uint8))
    losses_of(model, images, [sample, sample.clone()])
    assert without_gradient(model) == []

    prediction, _ = predict(model, images, [sample, sample.clone()])
    if task == 'semantic':
        assert prediction.pred_sem_seg.data.shape == (1, *SIZE)
        return
    instances = prediction.pred_instances
    assert instances.masks.shape == (len(instances.scores), *SIZE)
    assert ('pred_panoptic_seg' in prediction) == (task == 'panoptic')
    if task == 'panoptic':
        segments = prediction.pred_panoptic_seg.sem_seg
        assert segments.shape == (1, *SIZE)
        assert np.isin(segments.numpy() % 1000, range(5)).all()
