"""The lines that ``xcit config backbone`` prints, below the base of a config of one's own."""

import re

import pytest
import torch
from helpers import ROOT
from helpers.in_process import call_tool
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import Runner

from xcit_mm import XCiT
from xcit_mm.base.environment import require_framework
from xcit_mm.config.adapt import adapt, adapt_for_test
from xcit_mm.config.build_model import build_model
from xcit_mm.config.load import load_config

DETECTOR = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
BASES = {
    'mmdet': DETECTOR,
    'mmseg': 'mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512.py',
}


def snippet(monkeypatch, capfd, *arguments: object) -> str:
    code, text, error = call_tool(monkeypatch, capfd, 'config.py', 'backbone', *arguments)
    assert code == 0, error
    return text


@pytest.mark.parametrize('framework', BASES)
@pytest.mark.parametrize(
    ('arch', 'patch_size', 'weights', 'mean'),
    [
        ('s12', 8, 'xcit/xcit_small_12_p8_384_dist.pth', 123.675),
        ('n12', 4, 'xcit/xcit_nano_12_p16_384_dist.pth', 123.675),
        ('m12', 16, 'debenedetti2022light-xcit-m-imagenet-linf.pth.tar', 0),
        ('l12', 8, None, 123.675),
    ],
)
def test_the_printed_lines_build_the_model_below_a_base(
    monkeypatch, capfd, tmp_path, framework, arch, patch_size, weights, mean
):
    text = snippet(monkeypatch, capfd, arch, patch_size, '--for', framework)
    (tmp_path / 'own.py').write_text(f"_base_ = '{BASES[framework]}'\n{text}")
    cfg = load_config(tmp_path / 'own.py')
    backbone = build_model(cfg, 'meta').backbone
    assert isinstance(backbone, XCiT) and backbone.patch_size == patch_size
    assert (backbone.init_cfg or {}).get('checkpoint', '').endswith(weights or '')
    assert (backbone.init_cfg is None) == (weights is None)
    assert cfg.model.data_preprocessor.mean[0] == mean
    # As the tools of mmdet and mmseg build it.
    cfg = Config.fromfile(tmp_path / 'own.py')
    require_framework(framework)
    with DefaultScope.overwrite_default_scope(framework), torch.device('meta'):
        assert isinstance(MODELS.build(cfg.model).backbone, XCiT)


def test_a_forgotten_import_is_in_the_config_that_a_run_writes(monkeypatch, capfd, tmp_path):
    text = snippet(monkeypatch, capfd, 'n12', 16, '--for', 'mmdet')
    lines = [line for line in text.splitlines() if not line.startswith('custom_imports')]
    (tmp_path / 'own.py').write_text('\n'.join([f"_base_ = '{DETECTOR}'", *lines]))
    cfg = load_config(tmp_path / 'own.py')
    assert any('custom_imports has xcit_mm now' in note for note in adapt(cfg))
    assert cfg.custom_imports.imports == ['xcit_mm']
    assert not any('custom_imports' in note for note in adapt(cfg))


def test_layers_of_a_config_of_mmdet_are_fused(tmp_path):
    (tmp_path / 'own.py').write_text(f"_base_ = '{DETECTOR}'\n")
    cfg = load_config(tmp_path / 'own.py')
    assert adapt_for_test(cfg, 'weights.pth')[-1] == 'The model computes in float32.'
    assert cfg.test_cfg.type == 'FusedTestLoop'


def test_a_runner_of_mmengine_builds_the_printed_lines(monkeypatch, capfd, tmp_path):
    """As mmdetection's own tools/train.py does."""
    text = snippet(monkeypatch, capfd, 'n12', 16, '--for', 'mmdet')
    (tmp_path / 'own.py').write_text(f"_base_ = '{DETECTOR}'\n{text}")
    cfg = Config.fromfile(tmp_path / 'own.py')
    cfg.update(work_dir=str(tmp_path / 'run'), experiment_name=tmp_path.name, launcher='none')
    cfg.update(dict.fromkeys(('optim_wrapper', 'param_scheduler', 'auto_scale_lr')))
    for part in ('dataloader', 'cfg', 'evaluator'):
        cfg.update({f'{split}_{part}': None for split in ('train', 'val', 'test')})
    cfg.pop('train_evaluator')
    assert isinstance(Runner.from_cfg(cfg).model.backbone, XCiT)


def test_the_neck_of_the_note_builds_semantic_fpn(monkeypatch, capfd, tmp_path):
    text = snippet(monkeypatch, capfd, 'n12', 16, '--for', 'mmseg')
    neck = re.search(r'write (neck=.*?) instead', text)[1]
    text = re.sub(r'    decode_head.*\n    auxiliary_head.*\n', f'    {neck},\n', text)
    base = 'mmseg::sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py'
    (tmp_path / 'own.py').write_text(f"_base_ = '{base}'\n{text}")
    assert build_model(load_config(tmp_path / 'own.py'), 'meta').with_neck


def test_both_frameworks_are_printed_by_default(monkeypatch, capfd):
    both = snippet(monkeypatch, capfd, 't12', 16)
    parts = [snippet(monkeypatch, capfd, 't12', 16, '--for', name) for name in BASES]
    assert both == '\n'.join(parts)


CHECKPOINT = 'weights.pth'
TOOLS = {
    'train.py': [],
    'test.py': [CHECKPOINT],
    'infer.py': [CHECKPOINT, ROOT / 'docs/shapes_detected.png', '--out', 'out'],
    'export.py': [CHECKPOINT, '--out', 'model.onnx'],
    'get_flops.py': ['--size', 64, 64],
    'check_dataset.py': [],
    'push.py': [CHECKPOINT, 'owner/name'],
}
MISTAKES = {
    'delete': (
        r'own\.py: model\.backbone: XCiT has no depth, num_stages, .*_delete_=True',
        ('_delete_=True, ', ''),
    ),
    'neck': (
        r'model\.neck\.in_channels=\[256.*; write in_channels=\[384, 384, 384, 384\]',
        (', neck=dict(in_channels=[384] * 4)', ''),
    ),
}


@pytest.mark.parametrize('mistake', MISTAKES)
@pytest.mark.parametrize('tool', TOOLS)
def test_what_is_forgotten_is_a_sentence_of_every_tool(monkeypatch, capfd, tmp_path, tool, mistake):
    if tool == 'export.py':
        pytest.importorskip('onnx')
    message, forgotten = MISTAKES[mistake]
    text = snippet(monkeypatch, capfd, 's12', 16, '--for', 'mmdet')
    assert forgotten[0] in text
    (tmp_path / 'own.py').write_text(f"_base_ = '{DETECTOR}'\n{text.replace(*forgotten)}")
    torch.save({'state_dict': {'a': torch.zeros(1)}}, tmp_path / CHECKPOINT)
    monkeypatch.chdir(tmp_path)
    code, _, error = call_tool(monkeypatch, capfd, tool, 'own.py', *TOOLS[tool])
    *_, sentence = error.strip().splitlines()
    assert code == 2 and re.search(message, sentence), error
    assert 'Traceback' not in error
    assert {path.name for path in tmp_path.iterdir()} <= {'own.py', CHECKPOINT, 'work_dirs'}


def test_weights_of_the_base_are_refused_for_a_segmentor(monkeypatch, capfd, tmp_path):
    text = snippet(monkeypatch, capfd, 'n12', 16, '--for', 'mmseg')
    text = re.sub('    pretrained=None,.*\n', '', text)
    (tmp_path / 'own.py').write_text(f"_base_ = '{BASES['mmseg']}'\n{text}")
    code, _, error = call_tool(
        monkeypatch, capfd, 'get_flops.py', tmp_path / 'own.py', '--size', 64, 64
    )
    assert code == 2 and re.search(r"model\.pretrained='open-mmlab.*write pretrained=None", error)
