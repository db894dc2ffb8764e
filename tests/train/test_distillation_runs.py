"""Runs that learn from a teacher: resumed, with other weights of it, and what starts from them."""

import json
import shutil

import pytest
import timm
import torch
from helpers import ROOT
from helpers.runs import UNDRAWN, steps, weights
from helpers.small_xcit import SMALL, small_xcit

from xcit_mm import UserError
from xcit_mm.apps.convert.conversion import convert
from xcit_mm.data.drawings.shapes import ShapesSpec, make_shapes
from xcit_mm.network.models import ImageXCiT
from xcit_mm.network.weights.pretrained import load_pretrained
from xcit_mm.train import train

ARCH = SMALL | {'_delete_': True}  # instead of a name
CONFIG = 'configs/distill_xcit_n12_16_shapes.py'
OF_TIMM = """
_base_ = {base!r}
model = dict(
    teacher=dict(_delete_=True, type='TimmTeacher', name='test_resnet', checkpoint={file!r}),
)
"""


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp('data') / 'shapes'
    make_shapes(root, ShapesSpec(num_train=8, num_val=1))
    return root


@pytest.fixture
def options(root):
    return {
        'data_root': f'{root}/',
        'model.backbone.arch': ARCH,
        'train_cfg.max_iters': 4,
        'default_hooks.checkpoint.interval': 2,
        'default_hooks.logger.interval': 1,
        'train_dataloader.batch_size': 2,
        'train_dataloader.num_workers': 0,
        'train_dataloader.dataset.pipeline.1.size': 64,
        'optim_wrapper.optimizer.lr': 1e-2,
        'param_scheduler.0.end': 2,
        **UNDRAWN,
    }


def save_teacher(path, seed: int) -> dict:
    """Write a small XCiT, and return the options that name it."""
    torch.manual_seed(seed)
    images = dict(channels=3, mean=[120.0], std=[60.0], bgr_to_rgb=False)
    state = ImageXCiT(SMALL, 16).state_dict()
    torch.save(dict(state_dict=state, meta=dict(images=images)), path)
    return {
        'model.teacher.checkpoint': str(path),
        'model.teacher.module.arch': ARCH,
        'model.teacher.license_note': 'my own',
    }


def test_a_run_resumes_with_the_same_teacher_and_is_a_backbone(options, tmp_path):
    file, whole, parts = (tmp_path / name for name in ('teacher.pth', 'whole', 'parts'))
    options |= save_teacher(file, seed=0)
    train(CONFIG, str(whole), options=options)
    parts.mkdir()
    shutil.copy(whole / 'iter_2.pth', parts)
    train(CONFIG, str(parts), resume=True, options=options)
    ends = [weights(folder / 'iter_4.pth') for folder in (whole, parts)]
    assert all(torch.equal(a, b) for a, b in zip(*(e.values() for e in ends), strict=True))
    assert not any('teacher' in name for name in ends[0])
    lines = [json.loads(line) for line in (whole / 'losses.jsonl').read_text().splitlines()]
    names = {'loss_dense', 'loss_global', 'dense_cosine', 'global_cosine'}
    assert steps(whole) == [1, 2, 3, 4] and all(names <= line.keys() for line in lines)
    assert lines[-1]['loss'] < lines[0]['loss']

    meta = torch.load(whole / 'iter_4.pth', weights_only=False)['meta']
    teacher = meta['teacher']
    assert len(teacher.pop('digest')) == 16
    assert teacher == dict(name='ImageXCiT', weights=str(file), license='my own')
    assert meta['images']['size'] == 64

    backbone = small_xcit()
    load_pretrained(backbone, whole / 'iter_4.pth')
    for name, value in backbone.blocks.state_dict().items():
        assert torch.equal(value, ends[0][f'backbone.blocks.{name}'])
    assert 'of an XCiT of 4 layers' in convert(whole / 'iter_4.pth', tmp_path / 'converted.pth')
    converted = weights(tmp_path / 'converted.pth')
    assert not any(name.startswith(('dense', 'global', 'cls_')) for name in converted)

    save_teacher(file, seed=1)
    (parts / 'iter_4.pth').unlink()
    with pytest.raises(UserError) as raised:
        train(CONFIG, str(parts), resume=True, options=options)
    assert str(raised.value).startswith('the weights of the teacher have changed since this run')


def test_a_convolutional_network_of_timm_is_a_teacher(options, tmp_path):
    file, config = tmp_path / 'resnet.pth', tmp_path / 'of_timm.py'
    torch.manual_seed(0)
    torch.save(timm.create_model('test_resnet').state_dict(), file)
    config.write_text(OF_TIMM.format(base=str(ROOT / CONFIG), file=str(file)))
    train(str(config), str(tmp_path / 'run'), options=options)
    lines = (tmp_path / 'run' / 'losses.jsonl').read_text().splitlines()
    first, *_, last = (json.loads(line)['loss'] for line in lines)
    assert last < first
    meta = torch.load(tmp_path / 'run' / 'iter_4.pth', weights_only=False)['meta']
    assert meta['teacher']['license'] == 'apache-2.0 (timm, timm/test_resnet.r160_in1k)'
