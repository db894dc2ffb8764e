"""Every config is the published model, and runs on the installed stack.

tests/expected/configs.txt holds the values of all recipes.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import RELEASE_NAMES, ROOT
from helpers.heads import losses_of, predict, without_gradient
from helpers.small_xcit import SMALL
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData, PixelData
from torch import nn

from xcit_mm import XCiT
from xcit_mm.base import environment
from xcit_mm.config.tree import leaves

CONFIGS = sorted(path.stem for path in (ROOT / 'configs').glob('*.py'))
DRAWN = 'shapes', 'small', 'context', 'context_crops', 'scene_windows'
# The data.
BUILT_IN = [n for n in CONFIGS if n.endswith(DRAWN) or n.startswith('fine_tune')]
OF_IMAGES = ('classify', 'distill', 'pretrain')  # tasks without mmdet and mmseg
OTHERS = [name for name in CONFIGS if not name.startswith(OF_IMAGES) and '_lsj_' not in name]
NAMES = [name for name in OTHERS if name not in BUILT_IN]
MASK2FORMER = ('instance', 'panoptic', 'semantic')  # tasks
SIZE = (96, 128)  # height and width of the images
RELEASE = 'https://dl.fbaipublicfiles.com/xcit/'
RELEASED = dict(mask_rcnn='coco/maskrcnn', sem_fpn='ade/sem_fpn', upernet='ade/upernet')
# Paper, tables 5 and 6: box and mask AP, or mIoU.
TABLE = """\
        mask_rcnn_{}_3x  sem_fpn_{}_80k  upernet_{}_160k
t12_16  42.7/38.5        38.1            41.5
t12_8   44.5/40.3        39.9            43.5
s12_16  45.3/40.8        43.9            45.9
s12_8   47.0/42.3        44.2            46.6
s24_16  46.5/41.8        44.6            46.9
s24_8   48.1/43.0        47.1            48.1
m24_16  46.7/42.0        45.9            47.6
m24_8   48.5/43.7        46.9            48.4
"""
RECIPES, *MODELS_OF_PAPER = map(str.split, TABLE.splitlines())
PUBLISHED = {
    recipe.format(f'xcit_{model}'): figures
    for model, *cells in MODELS_OF_PAPER
    for recipe, figures in zip(RECIPES, cells, strict=True)
}
# Drop path of the release, of all blocks of an arch.
DROP_PATHS = dict(n12=0, t12=0, t24=0.05, s12=0.05, s24=0.1, m24=0.15, l24=0.25)
OTHER_DROP_PATHS = {('mask_rcnn', 'l24', '8'): 0.3}
OTHER_DROP_PATHS |= {('sem_fpn', 'm24', patch_size): 0.2 for patch_size in ('8', '16')}
# Learning rate and weight decay; the DETRs and Mask2Former have other tests.
RATES = {'mmdet': (1e-4, 0.05), 'mmseg': (6e-5, 0.01)}
# DINO of the openmmlab packages encodes reference boxes in 512 numbers, of the onedl ones in 1024.
FEWER = 0 if environment.installed('onedl-mmdetection') else 512 * 256


def load(name: str) -> Config:
    cfg = Config.fromfile(ROOT / 'configs' / f'{name}.py')
    for part in ('models', 'datasets', 'evaluation', 'visualization'):
        environment.require(f'{cfg.default_scope}.{part}')
    init_default_scope(cfg.default_scope)
    return cfg


def build(cfg: Config, **backbone) -> torch.nn.Module:
    return MODELS.build(cfg.model | dict(backbone=cfg.model.backbone | backbone))


def test_every_published_model_has_a_config():
    assert len(PUBLISHED) == 24 and PUBLISHED.keys() <= {*NAMES}


def is_slow(name: str) -> bool:
    return name.startswith('mask2former') and 's12_8' not in name


def groups_of(cfg: Config, model: torch.nn.Module) -> dict[str, dict]:
    """Return the group of AdamW that each parameter of a model belongs to."""
    parts = {name: cfg.optim_wrapper[name] for name in ('optimizer', 'paramwise_cfg')}
    optimizer = build_optim_wrapper(model, dict(type='OptimWrapper', **parts)).optimizer
    assert isinstance(optimizer, torch.optim.AdamW)
    groups = {id(p): group for group in optimizer.param_groups for p in group['params']}
    return {name: groups[id(parameter)] for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    'name', [pytest.param(n, marks=[pytest.mark.slow] * is_slow(n)) for n in NAMES]
)
def test_config_is_the_published_model_recipe_and_weights(name):
    task, arch, patch_size = re.match(r'(\w+)_xcit_(\w+?)_(\d+)_', name).groups()
    cfg = load(name)
    with torch.device('meta'):  # shapes without values
        model = build(cfg)
    assert model.backbone.out_indices == ((3, 5, 7, 11) if '12' in arch else (7, 11, 15, 23))
    drop_path = OTHER_DROP_PATHS.get((task, arch, patch_size), DROP_PATHS[arch])
    assert {block.drop_path.p for block in model.backbone.blocks} == {drop_path}
    if not task.startswith(('dino', 'deformable_detr', 'mask2former')):
        lr, decay = RATES[cfg.default_scope]
        for parameter, group in groups_of(cfg, model).items():
            assert (group['lr'], group['betas']) == (lr, (0.9, 0.999))
            assert group['weight_decay'] == (0 if 'norm' in parameter else decay), parameter

    assert model.backbone.patch_size == int(patch_size)
    weights = f'{RELEASE}xcit_{RELEASE_NAMES[arch]}_p{patch_size}_384_dist.pth'
    assert cfg.pretrained == weights
    assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint=weights)

    text = (ROOT / 'configs' / f'{name}.py').read_text()
    assert f'XCiT-{arch.upper()}/{patch_size}' in text
    num_parameters = sum(p.numel() for p in model.parameters()) + FEWER * (task == 'dino')
    named = float(re.search(r'([0-9.]+) M parameters', text)[1])
    assert num_parameters / 1e6 == pytest.approx(named, abs=0.01)
    assert f'tools/dist_train.sh configs/{name}.py 8' in text
    if name in PUBLISHED:
        figures = re.search(r'published (.*?);', text)[1]
        assert re.findall(r'[0-9.]+', figures) == PUBLISHED[name].split('/')
        file = f'{RELEASED[task]}_xcit_{RELEASE_NAMES[arch]}_p{patch_size}.pth'
        assert f'Weights: {RELEASE}{file}\n' in text
    else:
        assert 'no published result' in text
    if patch_size == '8':
        assert f"_base_ = '{name.replace('_8_', '_16_')}.py'" in text


def of_mmdet(file: str) -> Config:
    import mmdet

    path = Path(mmdet.__file__).parent / '.mim' / 'configs' / file
    return Config.fromfile(path, import_custom_modules=False)


DETRS = {
    'dino_xcit_s12_16_12e': 'dino/dino-4scale_r50_8xb2-12e_coco.py',
    'deformable_detr_xcit_s12_16_50e': (
        'deformable_detr/deformable-detr-refine-twostage_r50_16xb2-50e_coco.py'
    ),
}


@pytest.mark.parametrize(
    ('name', 'file', 'different'),
    [
        (
            'cascade_mask_rcnn_xcit_s12_16_3x',
            'convnext/cascade-mask-rcnn_convnext-t-p4-w7_fpn_4conv1fc-giou_amp-ms-crop-3x_coco.py',
            # sync_bn of default_runtime.py makes it SyncBN; our head computes the same.
            r'.*norm_cfg\..*|rpn_head\.type',
        ),
        *((name, file, '') for name, file in DETRS.items()),
        ('rtmdet_xcit_s12_16_3x', 'rtmdet/rtmdet_l_swin_b_4xb32-100e_coco.py', r'use_syncbn'),
    ],
)
def test_a_head_has_the_settings_of_mmdet(name, file, different):
    """All of the model but the backbone and what its maps and padding differ in."""
    ours, theirs = load(name), of_mmdet(file)
    different = rf'(backbone|data_preprocessor|neck\.in_channels)\..*|{different}'
    ours_flat, theirs_flat = (
        {key: value for key, value in leaves(cfg.model) if not re.fullmatch(different, key)}
        for cfg in (ours, theirs)
    )
    assert theirs_flat.items() - ours_flat.items() == set()
    # Defaults of mmdet that Deformable DETR names here, for DINO to change them.
    defaults = dict(num_feature_levels=4, num_levels=4, dropout=0.1, batch_first=True)
    for key in ours_flat.keys() - theirs_flat.keys():
        assert defaults[key.rpartition('.')[2]] == ours_flat[key], key


@pytest.mark.parametrize('name', DETRS)
def test_a_detr_is_trained_as_in_mmdet(name):
    """At the same learning rate for each image of a step."""
    ours, theirs = load(name), of_mmdet(DETRS[name])
    lr = 16 * theirs.optim_wrapper.optimizer.lr / theirs.auto_scale_lr.base_batch_size
    theirs.optim_wrapper.optimizer.update(lr=lr, betas=(0.9, 0.999), fused=True)  # PyTorch's
    theirs.optim_wrapper.constructor = 'MergedGroupsConstructor'  # the same, in fewer groups
    assert ours.optim_wrapper == theirs.optim_wrapper
    assert ours.param_scheduler == theirs.param_scheduler
    assert ours.train_cfg.max_epochs == theirs.train_cfg.max_epochs
    filters = [cfg.train_dataloader.dataset.filter_cfg.filter_empty_gt for cfg in (ours, theirs)]
    assert filters == [False, False]


@pytest.mark.parametrize('name', ['panoptic_xcit_s12_8_50e', 'semantic_xcit_s12_8_160k'])
def test_mask2former_has_own_rates_and_decays(name):
    cfg = load(f'mask2former_{name}')
    with torch.device('meta'):
        model = build(cfg)
    norms = (nn.LayerNorm, nn.GroupNorm)
    of_norms = {id(p) for m in model.modules() if isinstance(m, norms) for p in m.parameters()}
    groups = groups_of(cfg, model)
    for name, parameter in model.named_parameters():
        lr = 1e-5 if name.startswith('backbone') else 1e-4
        assert groups[name]['lr'] == pytest.approx(lr), name
        embeddings = ('query_embed', 'query_feat', 'level_embed')
        is_free = id(parameter) in of_norms or any(e in name for e in embeddings)
        assert groups[name]['weight_decay'] == (0 if is_free else 0.05), name


def labeled(cfg: Config) -> Any:
    """Return a sample with an object and labels, as the model of a config takes it."""
    labels = torch.full((1, *SIZE), 3)  # the background, in the order of panoptic data
    labels[:, 20:70, 30:90] = 2
    metainfo = dict(img_shape=SIZE, ori_shape=SIZE, scale_factor=(1.0, 1.0), img_id=0)
    if cfg.default_scope == 'mmseg':
        from mmseg.structures import SegDataSample

        return SegDataSample(metainfo=metainfo, gt_sem_seg=PixelData(data=labels))
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks

    instances = InstanceData(
        bboxes=torch.tensor([[30.0, 20.0, 90.0, 70.0]]),
        labels=torch.tensor([2]),
        masks=BitmapMasks((labels == 2).byte().numpy(), *SIZE),
    )
    sample = DetDataSample(metainfo=metainfo, gt_instances=instances)
    sample.gt_sem_seg = PixelData(sem_seg=labels)
    return sample


@pytest.mark.parametrize(
    'name',
    [
        *('retinanet_xcit_t12_16_1x', 'faster_rcnn_xcit_n12_16_small', 'upernet_xcit_t12_16_160k'),
        *(f'mask2former_{task}_xcit_n12_16_shapes' for task in MASK2FORMER),
    ],
)
def test_a_model_computes_losses_and_predicts(name):
    """Mask R-CNN and Semantic FPN are trained by many tests."""
    cfg, maps = load(name), [SMALL['embed_dim']] * 4  # of a tiny backbone
    if name.startswith('upernet'):
        cfg.model.auxiliary_head.update(in_channels=maps[2], channels=16)
        cfg.model.decode_head.channels = 16
    readers = 'neck', 'panoptic_head', 'decode_head'
    next(cfg.model[part] for part in readers if part in cfg.model).in_channels = maps
    model = build(cfg, arch=SMALL, out_indices=(0, 1, 2, 3), init_cfg=None)
    model.data_preprocessor.size = SIZE
    samples = [labeled(cfg), labeled(cfg)]
    images = list(torch.randint(0, 256, (2, 3, *SIZE), dtype=torch.uint8))
    losses = losses_of(model, images, samples)
    assert ('aux.loss_ce' in losses) == name.startswith('upernet')
    # RetinaNet's FPN begins at stride 8: the modules of the map at stride 4 are not trained.
    unused = ('backbone.fpn1', 'backbone.out_norms.0') if 'retinanet' in name else ()
    assert [n for n in without_gradient(model) if not n.startswith(unused)] == []

    prediction, _ = predict(model, images, samples)
    if cfg.default_scope == 'mmseg':
        assert prediction.pred_sem_seg.data.shape == (1, *SIZE)
        return
    objects = prediction.pred_instances
    assert objects.bboxes.shape == (len(objects.scores), 4)
    if name.startswith('mask'):
        assert objects.masks.shape == (len(objects.scores), *SIZE)
    assert ('pred_panoptic_seg' in prediction) == ('panoptic' in name)
    if 'panoptic' in name:
        segments = prediction.pred_panoptic_seg.sem_seg
        assert segments.shape == (1, *SIZE)
        assert np.isin(segments.numpy() % 1000, range(5)).all()


def test_the_config_of_the_readme_builds(tmp_path):
    page = (ROOT / 'README.md').read_text()
    start = page.index("_base_ = 'mmdet::")
    (tmp_path / 'own.py').write_text(page[start : page.index('```', start)])
    cfg = Config.fromfile(tmp_path / 'own.py')
    environment.require('mmdet.models')
    init_default_scope('mmdet')
    assert isinstance(MODELS.build(cfg.model).backbone, XCiT)
