"""DINO through the runner: resuming, bands, windows of large images, and its files as weights."""

import math
import shutil
from copy import deepcopy
from itertools import pairwise

import cv2
import numpy as np
import pytest
import tifffile
import torch
from helpers.runs import UNDRAWN, losses, weights

from xcit_mm import XCiT
from xcit_mm.network.models import ImageXCiT
from xcit_mm.network.weights.names import image_state
from xcit_mm.network.weights.pretrained import load_pretrained
from xcit_mm.train import train

ARCH = dict(embed_dim=32, depth=4, num_heads=4, eta=1.0)
CONFIG, OF_BANDS, OF_WINDOWS = (
    f'configs/pretrain_xcit_n12_16_{name}.py'
    for name in ('shapes', '13bands_shapes', 'scene_windows')
)
CROPS = dict(type='MultiCrop', global_size=32, local_size=16, num_local=2)


def changes(root, load: dict, max_iters: int = 4) -> dict:
    return {
        'data_root': str(root),
        'model.backbone.arch': dict(ARCH, _delete_=True),
        'model.outputs': 32,
        'model.hidden': 16,
        'model.bottleneck': 8,
        'train_dataloader.batch_size': 3,
        'train_dataloader.num_workers': 0,
        'train_dataloader.dataset.pipeline': [load, CROPS, dict(type='PackImage')],
        'train_cfg.max_iters': max_iters,
        'default_hooks.checkpoint.interval': 2,
        'default_hooks.logger.interval': 1,
        'optim_wrapper.type': 'OptimWrapper',
        **UNDRAWN,
    }


def state(folder):
    return weights(folder / 'iter_4.pth')


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    root = tmp_path_factory.mktemp('data') / 'unlabeled'
    folder = root / 'ade/images/training'
    folder.mkdir(parents=True)
    for number in range(8):
        image = cv2.resize(noise(8, 4, 4 + number, 3)[number], (48, 40))
        cv2.imwrite(str(folder / f'{number}.png'), image)
    return root


@pytest.fixture(scope='module')
def of_run(images) -> dict:
    return changes(images, dict(type='LoadImage')) | {
        'default_hooks.checkpoint.interval': 1,
        'default_hooks.checkpoint.max_keep_ckpts': 9,
        'model.momentum': 0.9,
        'model.frozen_share': 0.5,
    }


@pytest.fixture(scope='module')
def whole(of_run, tmp_path_factory):
    """The work dir of a run that was not stopped."""
    folder = tmp_path_factory.mktemp('whole')
    train(CONFIG, str(folder), options=deepcopy(of_run))
    return folder


def test_a_resumed_run_ends_as_one_that_was_not_stopped(whole, of_run, tmp_path):
    shutil.copy(whole / 'iter_2.pth', tmp_path)
    train(CONFIG, str(tmp_path), resume=True, options=deepcopy(of_run))
    a, b = state(whole), state(tmp_path)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert {k: v for k, v in losses(whole).items() if k > 2} == losses(tmp_path)


def test_the_teacher_follows_each_step_and_the_last_layer_waits(whole):
    steps = [weights(whole / f'iter_{n}.pth') for n in range(1, 5)]
    last = [step['student.head.last_layer.weight'] for step in steps]
    assert torch.equal(last[0], last[1])  # frozen in half of the four steps
    assert not torch.equal(last[1], last[2])
    for number, (before, after) in enumerate(pairwise(steps), 1):
        momentum = 1 - 0.1 * (math.cos(math.pi * number / 4) + 1) / 2
        for name in ('backbone.cls_token', 'head.mlp.0.weight'):
            student, teacher = (after[f'{part}.{name}'] for part in ('student', 'teacher'))
            expected = momentum * before[f'teacher.{name}'] + (1 - momentum) * student
            assert not torch.equal(teacher, before[f'teacher.{name}'])
            torch.testing.assert_close(teacher, expected, rtol=1e-5, atol=1e-7)


def test_the_teacher_is_the_pretrained_backbone(whole, tmp_path):
    path, saved = whole / 'iter_4.pth', state(whole)
    backbone, network = XCiT(ARCH, 16, (0, 1, 2, 3)), ImageXCiT(ARCH, 16, num_classes=5)
    for model in (backbone, network):
        load_pretrained(model, path)
        loaded = model.state_dict()
        for name in ('patch_embed.proj.0.0.weight', 'blocks.3.attn.qkv.weight'):
            assert torch.equal(loaded[name], saved[f'teacher.backbone.{name}'])
    assert torch.equal(network.cls_token, saved['teacher.backbone.cls_token'])
    # As the authors' files: the weights of student and teacher in a dictionary each.
    released = {
        part: {
            f'module.{name.removeprefix(f"{part}.")}': value
            for name, value in saved.items()
            if name.startswith(part)
        }
        for part in ('student', 'teacher')
    }
    torch.save(released, tmp_path / 'released.pth')
    load_pretrained(other := ImageXCiT(ARCH, 16), tmp_path / 'released.pth')
    expected = image_state(saved)
    assert all(torch.equal(v, expected[name]) for name, v in other.state_dict().items())
    meta = torch.load(path, weights_only=False)['meta']
    assert meta['images']['channels'] == 3
    assert meta['images']['bgr_to_rgb'] is True


def test_images_of_13_bands(tmp_path):
    folder = tmp_path / 'data/ade/images/training'
    folder.mkdir(parents=True)
    for number in range(4):
        tifffile.imwrite(
            folder / f'{number}.tif', noise(4, 40, 48, 13)[number], photometric='minisblack'
        )
    load = dict(type='LoadMultiband', channels=13)
    train(OF_BANDS, str(tmp_path / 'run'), options=changes(tmp_path / 'data', load))
    assert len(losses(tmp_path / 'run')) == 4
    assert state(tmp_path / 'run')['teacher.backbone.patch_embed.proj.0.0.weight'].shape[1] == 13


def test_windows_of_large_images(tmp_path):
    folder = tmp_path / 'data/training'
    folder.mkdir(parents=True)
    tifffile.imwrite(folder / 'mosaic.tif', cv2.resize(noise(30, 40, 3), (400, 300)))
    load = dict(type='ReadWindow')
    of_run = changes(tmp_path / 'data', load) | {'train_dataloader.dataset.window': 64}
    train(OF_WINDOWS, str(tmp_path / 'run'), options=of_run)
    assert len(losses(tmp_path / 'run')) == 4
