"""Classifiers through the runner: resumed, validated, and with the classes of the folders."""

import json
import shutil

import pytest
import torch
from helpers.runs import losses, weights
from helpers.small_xcit import SMALL

from xcit_mm import UserError
from xcit_mm.datasets.shape_classes import CLASSES, ClassesSpec, make_classes
from xcit_mm.engine import train

CONFIG = 'configs/classify_xcit_n12_8_shapes.py'
SIZE = 32


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp('data') / 'classes'
    make_classes(root, ClassesSpec(num_train=20, num_val=10))
    return root


@pytest.fixture
def options(root):
    return {
        'data_root': f'{root}/',
        'model.backbone.arch': SMALL | {'_delete_': True},
        'model.backbone.patch_size': 16,
        'train_cfg.max_iters': 4,
        'train_cfg.val_interval': 4,
        'default_hooks.checkpoint.interval': 2,
        'default_hooks.logger.interval': 1,
        'train_dataloader.batch_size': 4,
        'train_dataloader.num_workers': 0,
        'train_dataloader.persistent_workers': False,
        'val_dataloader.num_workers': 0,
        'val_dataloader.persistent_workers': False,
        'train_dataloader.dataset.pipeline.1.size': SIZE,
        'val_dataloader.dataset.pipeline.1.size': SIZE,
        'param_scheduler.0.end': 2,
    }


def test_a_run_of_mixed_images_resumes_bit_for_bit(options, tmp_path):
    options |= {
        'model.mixup': dict(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, _delete_=True),
        'train_dataloader.dataset.pipeline': [
            dict(type='LoadImage'),
            dict(type='TimmAugment', size=SIZE, erase=1.0),
            dict(type='PackImage'),
        ],
        'train_dataloader.sampler': dict(type='RepeatedSampler', shuffle=True, _delete_=True),
    }
    del options['train_dataloader.dataset.pipeline.1.size']
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    train(CONFIG, str(whole), options=options)
    parts.mkdir()
    shutil.copy(whole / 'iter_2.pth', parts)
    train(CONFIG, str(parts), resume=True, options=options)
    a, b = (weights(folder / 'iter_4.pth') for folder in (whole, parts))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert {k: v for k, v in losses(whole).items() if k > 2} == losses(parts)


def test_the_folders_are_the_classes_and_accuracies_are_logged(options, tmp_path):
    train(CONFIG, str(tmp_path), options=options)
    saved = torch.load(tmp_path / 'iter_4.pth', weights_only=False)
    assert saved['state_dict']['backbone.head.weight'].shape[0] == len(CLASSES)
    assert list(saved['meta']['classes']) == list(CLASSES)
    assert saved['meta']['images']['size'] == SIZE
    lines = [
        json.loads(line)
        for file in tmp_path.glob('*/vis_data/scalars.json')
        for line in file.read_text().splitlines()
    ]
    last = next(line for line in lines if 'accuracy/top1' in line)
    assert 0 <= last['accuracy/top1'] <= last['accuracy/top5'] <= 100


def test_a_single_class_is_refused(options, tmp_path):
    folder = tmp_path / 'data/train/only'
    folder.mkdir(parents=True)
    with pytest.raises(UserError) as raised:
        train(CONFIG, str(tmp_path / 'run'), options=options | {'data_root': f'{tmp_path}/data/'})
    assert str(raised.value) == (
        f'{tmp_path}/data/train has 1 folders of classes, but a classifier needs at least 2: add '
        'a folder of images for each class, or set data_root'
    )
