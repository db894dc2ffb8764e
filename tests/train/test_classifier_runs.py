"""Classifiers through the runner: resuming, a teacher, other classes, and tools/classify.py."""

import json
import shutil

import pytest
import torch
from helpers.in_process import call_tool
from helpers.runs import UNDRAWN, losses, weights
from PIL import Image

from xcit_mm.data.drawings.shape_classes import CLASSES, ClassesSpec, make_classes
from xcit_mm.train import test as evaluate
from xcit_mm.train import train

CONFIG = 'configs/classify_xcit_n12_8_shapes.py'
ARCH = dict(embed_dim=32, depth=4, num_heads=4, eta=1.0)


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp('data') / 'classes'
    make_classes(root, ClassesSpec(num_train=20, num_val=10))
    return root


def changes(root, **more) -> dict:
    return {
        'data_root': str(root),
        'model.backbone.arch': dict(ARCH, _delete_=True),
        'model.backbone.patch_size': 16,
        'train_dataloader.batch_size': 4,
        'train_dataloader.num_workers': 0,
        'val_dataloader.num_workers': 0,
        'test_dataloader.num_workers': 0,
        'train_cfg.max_iters': 4,
        'train_cfg.val_interval': 4,
        'default_hooks.checkpoint.interval': 2,
        'default_hooks.logger.interval': 1,
        'optim_wrapper.type': 'OptimWrapper',
        **UNDRAWN,
        **more,
    }


def teacher(path):
    module = dict(type='ImageXCiT', arch=ARCH, patch_size=16, num_classes=len(CLASSES))
    return dict(type='ModuleTeacher', module=module, checkpoint=str(path))


@pytest.fixture(scope='module')
def trained(root, tmp_path_factory):
    """A run with the recipe of DeiT: augmented, mixed and repeated images."""
    folder = tmp_path_factory.mktemp('run')
    mixup = dict(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, _delete_=True)
    sampler = dict(type='RepeatedSampler', shuffle=True, _delete_=True)
    drop = {'train_dataloader.drop_last': True}
    augment = [dict(type='LoadImage'), dict(type='TimmAugment', size=64), dict(type='PackImage')]
    more = {'model.mixup': mixup, 'train_dataloader.sampler': sampler}
    of_run = changes(root, **more, **drop, **{'train_dataloader.dataset.pipeline': augment})
    train(CONFIG, str(folder), options=of_run)
    return folder, of_run


def test_a_resumed_run_ends_as_one_that_was_not_stopped(trained, tmp_path):
    whole, of_run = trained
    shutil.copy(whole / 'iter_2.pth', tmp_path)
    train(CONFIG, str(tmp_path), resume=True, options=of_run)
    a, b = weights(whole / 'iter_4.pth'), weights(tmp_path / 'iter_4.pth')
    assert all(torch.equal(a[name], b[name]) for name in {**a, **b})
    assert {k: v for k, v in losses(whole).items() if k > 2} == losses(tmp_path)
    assert 'accuracy/top1' in (tmp_path / 'metrics.jsonl').read_text()
    pictures = list((tmp_path / 'pictures').iterdir())
    assert len(pictures) == 10
    width, height = Image.open(pictures[0]).size
    assert width == 2 * height  # the annotated class, and the predicted one


def test_a_teacher_teaches_and_is_named_in_the_checkpoint(trained, root, tmp_path):
    path = trained[0] / 'iter_4.pth'
    train(CONFIG, str(tmp_path), options=changes(root, **{'model.teacher': teacher(path)}))
    content = torch.load(tmp_path / 'iter_4.pth', weights_only=False)
    assert content['meta']['teacher']['weights'] == str(path)
    assert all(name.startswith('backbone.') for name in content['state_dict'])
    line = json.loads((tmp_path / 'losses.jsonl').read_text().splitlines()[-1])
    assert line['loss'] == pytest.approx(line['loss_labels'] + line['loss_teacher'], rel=1e-5)


def test_weights_of_other_classes_start_a_transfer(trained, root, tmp_path, capfd):
    few = tmp_path / 'few'
    for split in ('train', 'val'):
        for name in CLASSES[:3]:
            shutil.copytree(root / split / name, few / split / name)
    path = trained[0] / 'iter_4.pth'
    train(CONFIG, str(tmp_path / 'run'), options=changes(few, pretrained=str(path)))
    printed = ''.join(capfd.readouterr())
    assert 'model.backbone.num_classes=3: the folders in' in printed
    assert f'2 tensors are not in {path}, so initialized at random: head' in printed


def test_both_tools_measure_the_same_accuracy(trained, root, tmp_path, monkeypatch, capfd):
    folder, _ = trained
    path, out = folder / 'iter_4.pth', tmp_path / 'accuracy.json'
    monkeypatch.chdir(tmp_path)
    code, printed, _ = call_tool(
        monkeypatch, capfd, 'classify.py', path, root / 'val', '--workers', 0, '--out', out
    )
    assert code == 0
    content = json.loads(out.read_text())
    assert (content['images'], content['size']) == (10, 64)
    assert 'no published figure' in printed


def test_test_py_evaluates_a_classifier(trained, root, tmp_path):
    path = trained[0] / 'iter_4.pth'
    # An evaluation needs no teacher, which may be on another machine.
    of_test = changes(root, **{'model.teacher': teacher('missing.pth')})
    metrics = evaluate(CONFIG, str(path), str(tmp_path), options=of_test)
    assert metrics.keys() == {'accuracy/top1', 'accuracy/top5', 'accuracy/mean_of_classes'}
