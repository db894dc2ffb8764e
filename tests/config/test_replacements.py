"""The classes that run instead of those in a config: all in one table, which is printed."""

import pytest
from helpers import ROOT
from helpers.in_process import call_tool
from mmengine.config import Config

from xcit_mm.base.environment import require_framework
from xcit_mm.config.adapt import adapt
from xcit_mm.config.load import load_config
from xcit_mm.config.replacements import REPLACEMENTS, replace_classes
from xcit_mm.config.tree import arguments_of, registered_class

SHAPES = ROOT / 'configs/mask_rcnn_xcit_n12_16_shapes.py'
OWN = """
_base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
train_dataloader = dict(dataset=dict(pipeline={{_base_.train_pipeline}}))
"""
OF_MMSEG = (
    *('IoUMetric', 'LoadAnnotations', 'EncoderDecoder', 'CascadeEncoderDecoder', 'DepthEstimator'),
)


@pytest.mark.parametrize('name', REPLACEMENTS)
def test_the_class_that_runs_has_the_arguments_of_the_class_in_the_config(name):
    framework = 'mmseg' if name in OF_MMSEG else 'mmdet'
    require_framework(framework)
    row = REPLACEMENTS[name]
    old, new = (registered_class(kind, framework) for kind in (row.name, row.replacement))
    assert isinstance(old, type) and isinstance(new, type) and old is not new
    for argument in arguments_of(old) - {*row.removed} - arguments_of(new):
        assert not row.applies('model', {'type': name, argument: 1}, framework)


@pytest.fixture
def own(tmp_path):
    path = tmp_path / 'own.py'
    path.write_text(OWN)
    return path


def test_a_part_is_replaced_once_and_named_with_its_place(own):
    cfg = load_config(own)
    replaced = {item.place: item.by.replacement for item in replace_classes(cfg)}
    assert replaced['train_dataloader.dataset'] == 'CheckedCocoDataset'
    assert replaced['train_dataloader.dataset.pipeline.0'] == 'LoadImage'
    assert replaced['train_cfg'] == 'ResumableEpochLoop'
    for place, name in replaced.items():
        node = cfg
        for key in place.split('.'):
            node = node[int(key) if key.isdecimal() else key]
        assert node.type == name
    assert not replace_classes(cfg)


def test_the_command_prints_the_table_and_the_config_that_runs(monkeypatch, capfd, own, tmp_path):
    code, text, _ = call_tool(monkeypatch, capfd, 'config.py', own)
    lines = text.splitlines()
    assert code == 0
    assert lines[0].split() == ['in', 'the', 'config', 'runs', 'which']
    start = next(i for i, line in enumerate(lines) if line.startswith('CocoDataset '))
    assert lines[start].split()[1:3] == ['CheckedCocoDataset', 'checks']
    assert lines[start + 1] == '    train_dataloader.dataset'
    assert 'The runner is CheckedRunner.' in lines
    assert not any(line.startswith('    train_pipeline') for line in lines)  # nothing reads it

    options = '--cfg-options', 'train_dataloader.batch_size=3'
    code, text, _ = call_tool(monkeypatch, capfd, 'config.py', own, '--full', *options)
    (tmp_path / 'full.py').write_text(text)
    cfg = Config.fromfile(tmp_path / 'full.py')
    assert code == 0 and text.startswith('# in the config')
    assert cfg.train_dataloader.dataset.type == 'CheckedCocoDataset'
    assert cfg.train_dataloader.batch_size == 3
    assert cfg.runner_type == 'CheckedRunner'


def test_label_images_of_mmseg_are_loaded_with_the_numbers_that_they_store():
    load = dict(type='LoadAnnotations', imdecode_backend='cv2', reduce_zero_label=True)
    others = [dict(type='mmdet.LoadAnnotations', with_bbox=True), dict(type='LoadDepthAnnotation')]
    pipeline = [load, load | dict(type='mmseg.LoadAnnotations'), *others]
    cfg = Config(dict(default_scope='mmseg', test_pipeline=pipeline))
    assert 'LoadLabels for LoadAnnotations' in adapt(cfg)[0]
    assert cfg.test_pipeline[:2] == [dict(type='LoadLabels', reduce_zero_label=True)] * 2
    assert cfg.test_pipeline[2:] == others
    cfg = Config(dict(default_scope='mmdet', test_pipeline=[dict(type='LoadAnnotations')]))
    adapt(cfg)
    assert cfg.test_pipeline == [dict(type='LoadAnnotations')]
