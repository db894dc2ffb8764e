"""Every config is the published model and recipe, and runs on the installed stack."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import RELEASE_NAMES, ROOT
from helpers.heads import losses_of, predict, without_gradient
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData

from xcit_mm import XCiT, environment

CONFIGS = sorted((ROOT / 'configs').glob('*.py'))
BUILT_IN = [path.stem for path in CONFIGS if path.stem.endswith(('shapes', 'small'))]  # the data
JITTERED = [path.stem for path in CONFIGS if '_lsj_' in path.stem]  # as in config/test_jitter.py
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
# Learning rate, weight decay, warm-up (iterations, start factor), steps and end of the schedule.
OF_DETECTORS = 1e-4, 0.05, (500, 1e-3)
OF_SEGMENTORS = 6e-5, 0.01, (1500, 1e-6)
RECIPES = {
    'mask_rcnn_xcit_{}_3x': (*OF_DETECTORS, (27, 33, 36)),
    'sem_fpn_xcit_{}_80k': (*OF_SEGMENTORS, (80000,)),
    'upernet_xcit_{}_160k': (*OF_SEGMENTORS, (160000,)),
    'retinanet_xcit_{}_1x': (*OF_DETECTORS, (8, 11, 12)),
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
    'cascade_mask_rcnn_xcit_{}_3x': (*OF_DETECTORS, (27, 33, 36)),
    'dino_xcit_{}_12e': None,  # test_a_head_has_the_settings_of_mmdet compares it
    'deformable_detr_xcit_{}_50e': None,
    'rtmdet_xcit_{}_3x': (*OF_DETECTORS, (27, 33, 36)),
    'mask2former_instance_xcit_{}_50e': None,  # test_mask2former_configs.py
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


def assert_recipe(cfg, model, lr, decay, warm_up, ends) -> None:
    *steps, end = ends
    linear, then = cfg.param_scheduler
    assert (linear.type, linear.by_epoch, linear.begin) == ('LinearLR', False, 0)
    assert (linear.end, linear.start_factor) == warm_up
    if steps:
        assert cfg.train_cfg == dict(type='ResumableEpochLoop', max_epochs=end, val_interval=1)
        expected = dict(type='MultiStepLR', by_epoch=True, milestones=steps, end=end, gamma=0.1)
        amp = dict(type='AmpOptimWrapper', loss_scale='dynamic')
    else:
        assert (cfg.train_cfg.type, cfg.train_cfg.max_iters) == ('ResumableIterLoop', end)
        begin = warm_up[0]
        expected = dict(type='PolyLR', by_epoch=False, begin=begin, end=end, power=1, eta_min=0)
        amp = dict(type='OptimWrapper')
    assert then == {**then, **expected}
    assert cfg.optim_wrapper == {**cfg.optim_wrapper, **amp}
    assert 'clip_grad' not in cfg.optim_wrapper

    optimizer = {name: cfg.optim_wrapper[name] for name in ('optimizer', 'paramwise_cfg')}
    optimizer = build_optim_wrapper(model, dict(type='OptimWrapper', **optimizer)).optimizer
    assert isinstance(optimizer, torch.optim.AdamW)
    assert {(g['lr'], g['betas']) for g in optimizer.param_groups} == {(lr, (0.9, 0.999))}
    decays = {id(p): g['weight_decay'] for g in optimizer.param_groups for p in g['params']}
    for parameter_name, parameter in model.named_parameters():
        expected = 0 if 'norm' in parameter_name else decay
        assert decays[id(parameter)] == expected, parameter_name


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
    if recipe:
        assert_recipe(cfg, model, *recipe)
    assert cfg.train_dataloader.batch_size == 2
    assert cfg.auto_scale_lr == dict(enable=True, base_batch_size=16)

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


def flat(node, prefix: str = '') -> dict:
    """Return the values of nested dicts and lists by their path."""
    if not isinstance(node, (dict, list, tuple)):
        return {prefix: node}
    children = node.items() if isinstance(node, dict) else enumerate(node)
    return {k: v for key, child in children for k, v in flat(child, f'{prefix}.{key}').items()}


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
        ('rtmdet_xcit_s12_16_3x', 'rtmdet/rtmdet_l_swin_b_4xb32-100e_coco.py', r'\.use_syncbn'),
    ],
)
def test_a_head_has_the_settings_of_mmdet(name, file, different):
    """All of the model but the backbone and what its maps and padding differ in."""
    ours, theirs = load(name), of_mmdet(file)
    different = rf'\.(backbone|data_preprocessor|neck\.in_channels)\..*|{different}'
    ours_flat, theirs_flat = (
        {key: value for key, value in flat(cfg.model).items() if not re.fullmatch(different, key)}
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


def test_mask_rcnn_augments_as_detr_does():
    cfg = load('mask_rcnn_xcit_s12_8_3x')
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


@pytest.mark.parametrize(
    ('name', 'head'),
    [
        ('sem_fpn_xcit_s12_8_80k', dict(type='FPNHead', channels=128, num_classes=150)),
        ('upernet_xcit_s12_8_160k', dict(type='UPerHead', channels=512, num_classes=150)),
    ],
)
def test_segmentors_see_ade20k_as_published(name, head):
    cfg = load(name)
    resize, crop, flip, distortion = cfg.train_dataloader.dataset.pipeline[2:6]
    assert (tuple(resize.scale), resize.ratio_range) == ((2048, 512), (0.5, 2.0))
    assert tuple(crop.crop_size) == tuple(cfg.model.data_preprocessor.size) == (512, 512)
    assert (flip.type, flip.prob) == ('RandomFlip', 0.5)
    assert distortion.type == 'PhotoMetricDistortion'
    assert cfg.model.test_cfg.mode == 'whole'
    assert tuple(cfg.test_dataloader.dataset.pipeline[1].scale) == (2048, 512)
    assert cfg.model.decode_head == {**cfg.model.decode_head, **head}
    if name.startswith('upernet'):
        auxiliary = cfg.model.auxiliary_head
        assert (auxiliary.in_index, auxiliary.channels) == (2, 256)
        assert auxiliary.loss_decode.loss_weight == 0.4
    else:
        assert cfg.model.neck.out_channels == 384


@pytest.mark.parametrize(
    'name',
    ['mask_rcnn_xcit_t12_16_3x', 'retinanet_xcit_t12_16_1x', 'faster_rcnn_xcit_n12_16_small'],
)
def test_a_detector_computes_losses_and_predicts(name):
    model = build(load(name), init_cfg=None)
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmengine.structures import InstanceData

    masks = np.zeros((1, *SIZE), dtype=np.uint8)
    masks[0, 20:70, 30:90] = 1
    instances = InstanceData(
        bboxes=torch.tensor([[30.0, 20.0, 90.0, 70.0]]),
        labels=torch.tensor([2]),
        masks=BitmapMasks(masks, *SIZE),
    )
    metainfo = dict(img_shape=SIZE, ori_shape=SIZE, scale_factor=(1.0, 1.0), img_id=0)
    samples = [DetDataSample(metainfo=metainfo, gt_instances=instances)]
    images = [torch.randint(0, 256, (3, *SIZE), dtype=torch.uint8)]
    losses_of(model, images, samples)
    # RetinaNet's FPN begins at stride 8: the modules of the map at stride 4 are not trained.
    unused = ('backbone.fpn1', 'backbone.out_norms.0')
    has_gap = 'retinanet' in name
    assert [n for n in without_gradient(model) if not (has_gap and n.startswith(unused))] == []

    (prediction,) = predict(model, images, samples)
    instances = prediction.pred_instances
    assert instances.bboxes.shape == (len(instances.scores), 4)
    if 'mask_rcnn' in name:
        assert instances.masks.shape == (len(instances.scores), *SIZE)


@pytest.mark.parametrize('name', ['sem_fpn_xcit_t12_16_80k', 'upernet_xcit_t12_16_160k'])
def test_a_segmentor_computes_losses_and_predicts(name):
    model = build(load(name), init_cfg=None)
    from mmseg.structures import SegDataSample

    labels = PixelData(data=torch.randint(0, 150, (1, *SIZE)))
    metainfo = dict(img_shape=SIZE, ori_shape=SIZE)
    samples = [SegDataSample(metainfo=metainfo, gt_sem_seg=labels) for _ in range(2)]
    images = list(torch.randint(0, 256, (2, 3, *SIZE), dtype=torch.uint8))
    model.data_preprocessor.size = SIZE
    losses = losses_of(model, images, samples)
    assert ('aux.loss_ce' in losses) == name.startswith('upernet')
    assert without_gradient(model) == []
    for prediction in predict(model, images, samples):
        assert prediction.pred_sem_seg.data.shape == (1, *SIZE)


def test_the_config_of_the_documentation_builds(tmp_path):
    page = (ROOT / 'docs' / 'own_data.md').read_text()
    start = page.index("_base_ = 'mmdet::")
    (tmp_path / 'own.py').write_text(page[start : page.index('```', start)])
    cfg = Config.fromfile(tmp_path / 'own.py')
    environment.require('mmdet.models')
    init_default_scope('mmdet')
    assert isinstance(MODELS.build(cfg.model).backbone, XCiT)
