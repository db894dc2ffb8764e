"""Every config is the published model, and runs on the installed stack.

tests/data/configs.txt holds the values of all recipes.
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

from xcit_mm import XCiT, environment
from xcit_mm.config.tree import leaves

CONFIGS = sorted((ROOT / 'configs').glob('*.py'))
BUILT_IN = [path.stem for path in CONFIGS if path.stem.endswith(('shapes', 'small'))]  # the data
JITTERED = [path.stem for path in CONFIGS if '_lsj_' in path.stem]  # as in config/test_jitter.py
MASK2FORMER = ('instance', 'panoptic', 'semantic')  # tasks
SIZE = (96, 128)  # height and width of the images
RELEASE = 'https://dl.fbaipublicfiles.com/xcit/'
RELEASED = dict(mask_rcnn='coco/maskrcnn', sem_fpn='ade/sem_fpn', upernet='ade/upernet')
# Paper, tables 5 and 6, and the hyper-parameters of the release: published metrics, parameters in
# millions, heads included, and drop path. What is not published has its parameters as counted.
TABLE = """\
        mask_rcnn                  sem_fpn               upernet               retinanet
t12_16  42.7/38.5  26.18   0       38.1  8.90    0       41.5  34.17   0       -     15.49   0
t12_8   44.5/40.3  25.87   0       39.9  8.59    0       43.5  33.87   0
s12_16  45.3/40.8  44.39   0.05    43.9  32.22   0.05    45.9  54.20   0.05    -     34.10   0.05
s12_8   47.0/42.3  43.17   0.05    44.2  31.00   0.05    46.6  52.98   0.05
s24_16  46.5/41.8  65.80   0.1     44.6  53.64   0.1     46.9  75.62   0.1
s24_8   48.1/43.0  64.58   0.1     47.1  52.42   0.1     48.1  74.40   0.1
m24_16  46.7/42.0  101.15  0.15    45.9  94.04   0.2     47.6  112.18  0.15
m24_8   48.5/43.7  98.98   0.15    46.9  91.86   0.2     48.4  110.01  0.15
n12_16  -          22.76   0
n12_8   -          22.62   0
t24_16  -          31.58   0.05
t24_8   -          31.27   0.05
l24_16  -          201.92  0.25
l24_8   -          197.03  0.3
"""
OF_DETECTORS, OF_SEGMENTORS = (1e-4, 0.05), (6e-5, 0.01)  # learning rate and weight decay
RECIPES = {
    'mask_rcnn_xcit_{}_3x': OF_DETECTORS,
    'sem_fpn_xcit_{}_80k': OF_SEGMENTORS,
    'upernet_xcit_{}_160k': OF_SEGMENTORS,
    'retinanet_xcit_{}_1x': OF_DETECTORS,
}
# Heads of which XCiT has no published result: parameters in millions, as counted.
LATER_HEADS = """\
        cascade_mask_rcnn  dino   deformable_detr  rtmdet  mask2former: instance, panoptic, semantic
t12_16  64.01              25.06  18.44            11.86   25.80  25.82  25.82
s12_16  82.22              42.78  36.16            37.22   44.01  44.03  44.03
s12_8   81.00              42.15  35.53            36.59   42.79  42.81  42.81
m24_16  138.99             98.89  92.27            100.95  100.78 100.79 100.80
m24_8   136.82             97.76  91.14            99.83   98.61  98.62  98.63
"""
LATER_RECIPES = {
    'cascade_mask_rcnn_xcit_{}_3x': OF_DETECTORS,
    'dino_xcit_{}_12e': None,  # test_a_detr_is_trained_as_in_mmdet
    'deformable_detr_xcit_{}_50e': None,
    'rtmdet_xcit_{}_3x': OF_DETECTORS,
    'mask2former_instance_xcit_{}_50e': None,  # test_mask2former_has_own_rates_and_decays
    'mask2former_panoptic_xcit_{}_50e': None,
    'mask2former_semantic_xcit_{}_160k': None,
}
# DINO of the openmmlab packages encodes reference boxes in 512 numbers, of the onedl ones in 1024.
FEWER = 0 if environment.installed('onedl-mmdetection') else 512 * 256
# Of every model three cells for each recipe, as far as its line goes.
ROWS = [
    (name.format(model), recipe, *cells[3 * i : 3 * i + 3])
    for model, *cells in map(str.split, TABLE.splitlines()[1:])
    for i, (name, recipe) in enumerate(RECIPES.items())
    if cells[3 * i :]
]
DROP_PATHS = {model: drop for model, _, _, drop, *_ in map(str.split, TABLE.splitlines()[1:])}
ROWS += [
    (name.format(model), recipe, '-', cell, DROP_PATHS[model])
    for model, *cells in map(str.split, LATER_HEADS.splitlines()[1:])
    for (name, recipe), cell in zip(LATER_RECIPES.items(), cells, strict=True)
]


def load(name: str) -> Config:
    cfg = Config.fromfile(ROOT / 'configs' / f'{name}.py')
    for part in ('models', 'datasets', 'evaluation', 'visualization'):
        environment.require(f'{cfg.default_scope}.{part}')
    init_default_scope(cfg.default_scope)
    return cfg


def build(cfg: Config, **backbone) -> torch.nn.Module:
    return MODELS.build(cfg.model | dict(backbone=cfg.model.backbone | backbone))


def is_slow(name: str) -> bool:
    return name.startswith('mask2former') and 's12_8' not in name


def test_the_table_has_every_config():
    assert {row[0] for row in ROWS} == {path.stem for path in CONFIGS} - {*BUILT_IN, *JITTERED}
    assert len([row for row in ROWS if row[2] != '-']) == 24


def groups_of(cfg: Config, model: torch.nn.Module) -> dict[str, dict]:
    """Return the group of AdamW that each parameter of a model belongs to."""
    parts = {name: cfg.optim_wrapper[name] for name in ('optimizer', 'paramwise_cfg')}
    optimizer = build_optim_wrapper(model, dict(type='OptimWrapper', **parts)).optimizer
    assert isinstance(optimizer, torch.optim.AdamW)
    groups = {id(p): group for group in optimizer.param_groups for p in group['params']}
    return {name: groups[id(parameter)] for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    'row',
    [pytest.param(row, id=row[0], marks=[pytest.mark.slow] * is_slow(row[0])) for row in ROWS],
)
def test_config_is_the_published_model_recipe_and_weights(row):
    name, recipe, published, params, drop = row
    task, arch, patch_size = re.match(r'(\w+)_xcit_(\w+?)_(\d+)_', name).groups()
    cfg = load(name)
    with torch.device('meta'):  # shapes without values
        model = build(cfg)
    num_parameters = sum(p.numel() for p in model.parameters()) + FEWER * (task == 'dino')
    assert num_parameters / 1e6 == pytest.approx(float(params), abs=0.01)
    assert model.backbone.out_indices == ((3, 5, 7, 11) if '12' in arch else (7, 11, 15, 23))
    assert {block.drop_path.p for block in model.backbone.blocks} == {float(drop)}
    for parameter, group in groups_of(cfg, model).items() if recipe else ():
        lr, decay = recipe
        assert (group['lr'], group['betas']) == (lr, (0.9, 0.999))
        assert group['weight_decay'] == (0 if 'norm' in parameter else decay), parameter
    assert model.backbone.patch_size == int(patch_size)
    weights = f'{RELEASE}xcit_{RELEASE_NAMES[arch]}_p{patch_size}_384_dist.pth'
    assert cfg.pretrained == weights
    assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint=weights)

    text = (ROOT / 'configs' / f'{name}.py').read_text()
    assert f'XCiT-{arch.upper()}/{patch_size}' in text
    assert f'{params} M parameters' in text
    assert f'tools/dist_train.sh configs/{name}.py 8' in text
    if published == '-':
        assert 'no published result' in text
    else:
        figures = re.search(r'published (.*?);', text)[1]
        assert re.findall(r'[0-9.]+', figures) == published.split('/')
        file = f'{RELEASED[task]}_xcit_{RELEASE_NAMES[arch]}_p{patch_size}.pth'
        assert f'Weights: {RELEASE}{file}\n' in text
    if patch_size == '8':
        assert f"_base_ = '{name.replace('_8_', '_16_')}.py'" in text


@pytest.mark.parametrize('name', BUILT_IN)
def test_a_config_of_the_built_in_data_builds(name):
    assert isinstance(build(load(name)).backbone, XCiT)


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
            r'.*norm_cfg\..*',  # sync_bn of default_runtime.py makes it SyncBN
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
    theirs.optim_wrapper.optimizer.update(lr=lr, betas=(0.9, 0.999))  # PyTorch's
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
        *('mask_rcnn_xcit_t12_16_3x', 'retinanet_xcit_t12_16_1x', 'faster_rcnn_xcit_n12_16_small'),
        *('sem_fpn_xcit_t12_16_80k', 'upernet_xcit_t12_16_160k'),
        *(f'mask2former_{task}_xcit_n12_16_shapes' for task in MASK2FORMER),
    ],
)
def test_a_model_computes_losses_and_predicts(name):
    cfg = load(name)
    if name.startswith('mask2former'):  # on a tiny backbone
        backbone = dict(arch=SMALL, out_indices=(0, 1, 2, 3), init_cfg=None)
        cfg.model['decode_head' if 'semantic' in name else 'panoptic_head'].in_channels = [
            SMALL['embed_dim']
        ] * 4
    else:
        backbone = dict(init_cfg=None)
    model = build(cfg, **backbone)
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


def test_the_config_of_the_documentation_builds(tmp_path):
    page = (ROOT / 'docs' / 'own_data.md').read_text()
    start = page.index("_base_ = 'mmdet::")
    (tmp_path / 'own.py').write_text(page[start : page.index('```', start)])
    cfg = Config.fromfile(tmp_path / 'own.py')
    environment.require('mmdet.models')
    init_default_scope('mmdet')
    assert isinstance(MODELS.build(cfg.model).backbone, XCiT)
