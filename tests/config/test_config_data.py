"""Configs that are data: the same model and pipeline as the config, and nothing that could run."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ROOT
from helpers.random_weights import DETECTOR, SEGMENTOR

from xcit_mm import UserError
from xcit_mm.base.environment import require_framework
from xcit_mm.config.build_model import build_model
from xcit_mm.config.config_data import describe, read_description
from xcit_mm.config.load import load_config
from xcit_mm.config.tree import pipeline_of_test_set

CONFIGS = [
    *(f'configs/{n}_xcit_n12_16_shapes.py' for n in ('mask_rcnn', 'dino', 'mask2former_panoptic')),
    *(f'configs/{n}_shapes.py' for n in ('heights_xcit_n12_16', 'sem_fpn_xcit_n12_16_13bands')),
    'configs/rtmdet_xcit_s12_16_3x.py',
    'configs/mask_rcnn_xcit_n12_16_scene_windows.py',
]


def without_weights(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: without_weights(node[key]) for key in node if key != 'init_cfg'}
    return type(node)(map(without_weights, node)) if isinstance(node, (list, tuple)) else node


@pytest.mark.parametrize('config', CONFIGS)
def test_a_description_has_the_model_and_the_pipeline_of_its_config(config, tmp_path):
    cfg = load_config(ROOT / config)
    classes, palette = ('a', 'b: $(c) <d>'), ((1, 2, 3), (4, 5, 6))
    (tmp_path / 'config.json').write_text(describe(cfg, classes, palette))
    described = load_config(tmp_path)
    assert described.model.to_dict() == without_weights(cfg.model.to_dict())
    expected = [transform.to_dict() for transform in pipeline_of_test_set(cfg)]
    assert [t.to_dict() for t in pipeline_of_test_set(described)] == expected
    assert described.default_scope == cfg.default_scope
    metainfo = described.test_dataloader.dataset.metainfo
    assert (tuple(metainfo.classes), tuple(map(tuple, metainfo.palette))) == (classes, palette)
    built = build_model(described, 'meta').state_dict()
    shapes = {name: value.shape for name, value in built.items()}
    assert shapes == {k: v.shape for k, v in build_model(cfg, 'meta').state_dict().items()}


@pytest.fixture(scope='module')
def content() -> dict[str, Any]:
    return json.loads(describe(load_config(ROOT / DETECTOR), ('a',), ((1, 2, 3),)))


@pytest.fixture
def read_changed(content, tmp_path) -> Callable[[str, Any], None]:
    """Read a valid description in which the value at a dotted place is another one."""

    def read(place: str, value: Any) -> None:
        changed = json.loads(json.dumps(content))
        node = changed
        *parents, last = place.split('.')
        for name in parents:
            node = node[int(name) if isinstance(node, list) else name]
        node[int(last) if isinstance(node, list) else last] = value
        (tmp_path / 'config.json').write_text(json.dumps(changed))
        read_description(tmp_path)

    return read


TRACE = "__import__('pathlib').Path('trace').mkdir()"
NMS = 'model.test_cfg.rcnn.nms'
HOSTILE = [
    # Types that mmengine would import, or mmcv evaluate.
    ('model.type', 'os.system'),
    ('model.type', 'mmengine.Config.fromfile'),
    ('model.type', 'mmdet.apis.init_detector'),
    ('model.type', 'trace_module'),
    ('model.type', 'mmpretrain.ResNet'),
    ('model.type', ['MaskRCNN']),
    ('model.backbone.type', 'torch.hub.load'),
    ('model.neck.type', 'subprocess.Popen'),
    (f'{NMS}.type', TRACE),
    (f'{NMS}.type', 'eval'),
    ('model.roi_head.bbox_head.loss_cls.type', 'Runner'),
    ('pipeline.1.type', 'builtins.exec'),
    ('pipeline.1', {'type': 'Lambda', 'function': TRACE}),
    ('pipeline.1.type', 'AutoAugment.policies'),
    # Other arguments that become types, code, files or addresses.
    ('model.backbone.norm_layer', 'trace_module'),
    ('model.backbone.norm_layer', 'os.system'),
    ('model.backbone.warp_mode', TRACE),
    ('model.teacher_config', 'trace.py'),
    ('model.teacher_config', '/tmp/trace'),
    ('model.backbone.init_cfg', {'type': 'Pretrained', 'checkpoint': 'trace.pth'}),
    ('model.pretrained', 'https://example.com/trace.pth'),
    ('model.backbone.init_cfg', {'checkpoint': 'weights', 'trusted': True}),
    ('model.backbone.pretrained', 'weights'),
    ('model.backbone.trusted', True),
    ('model.roi_head.bbox_head.loss_cls.class_weight', 'weights'),
    ('model.roi_head.bbox_head.loss_cls.weight', 'pickle'),
    ('pipeline.1', {'type': 'LoadAnnotations', 'imdecode_backend': 'pkl'}),
    ('pipeline.0.backend_args', {'backend': 'memcached', 'sys_path': 'folder'}),
    ('pipeline.0.file_client_args', {'backend': 'lmdb', 'db_path': 'folder'}),
    ('model.teacher_ckpt', 'weights'),
    ('model.class_embed_path', 'weights'),
    ('model.backbone.checkpoint_path', 'weights'),
    ('model.backbone', {'type': 'TimmTeacher', 'name': 'xcit_nano_12_p16_224'}),
    ('model.backbone', {'type': 'ModuleTeacher', 'module': {'type': 'XCiT'}, 'file': 'weights'}),
    ('model.neck', {'type': 'mmdet.BertModel', 'name': 'weights'}),
    ('model.roi_head.test', '${HOME}'),
    ('model.roi_head.test', '{{ fileDirname }}'),
    ('model.roi_head.test', '..'),
    ('model.roi_head.test', 'a\u202eb'),
    # What mmengine does to a config or while it builds.
    ('custom_imports', {'imports': ['trace_module']}),
    ('_base_', 'trace.py'),
    ('model._delete_', True),
    ('model._scope_', 'trace_module'),
    ('model.backbone.__class__', 'x'),
    ('default_scope', 'trace_module'),
    ('train_dataloader', {'dataset': {'ann_file': 'trace.pkl'}}),
    ('test_evaluator', {'type': 'DumpDetResults', 'out_file_path': 'trace.pkl'}),
    # Values of a wrong kind.
    ('model', 'MaskRCNN'),
    ('pipeline', {}),
    ('classes', '/etc/passwd'),
    ('classes', [['a']]),
    ('palette', None),
]


@pytest.mark.parametrize(('place', 'value'), HOSTILE)
def test_nothing_in_a_description_is_run(read_changed, tmp_path, monkeypatch, place, value):
    (tmp_path / 'trace_module.py').write_text("from pathlib import Path\nPath('trace').mkdir()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    require_framework('mmengine')  # registers teachers
    with pytest.raises(UserError, match=r'the (classes in the )?config of ') as error:
        read_changed(place, value)
    assert str(error.value).isprintable() and len(str(error.value)) < 700
    assert 'trace_module' not in sys.modules and not Path('trace').exists()


def test_a_folder_with_the_name_of_a_value_changes_nothing(read_changed, tmp_path, monkeypatch):
    (tmp_path / 's12').mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    read_changed('model.backbone.arch', 's12')


# What Python can parse, and functions that call themselves cannot walk.
PLAIN = json.dumps(
    dict(xcit_mm='1', default_scope='mmdet', model={}, classes=[], palette=[], pipeline='mmdet')
)
DEEP, DEEPER = (PLAIN.replace('"mmdet"}', f'{"[" * n}{"]" * n}}}') for n in (100, 950))


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('', 'cannot be read'),
        ('[' * 10**5, 'cannot be read'),
        ('{"a":' * 10**5, 'cannot be read'),
        (DEEP, 'but a config that is data'),
        (DEEPER, 'cannot be read|but a config that is data'),
        (' ' * 2**21, r'cannot be read .*File too large'),
        ('{"xcit_mm": ' + '9' * 10**4 + '}', 'cannot be read'),
        ('\udcff', 'cannot be read'),
        ('{"model_type": "bert", "auto_map": {"AutoModel": "evil.Model"}}', 'does not belong to'),
    ],
)
def test_another_file_is_an_error(tmp_path, text, message):
    (tmp_path / 'config.json').write_bytes(text.encode(errors='surrogateescape'))
    with pytest.raises(UserError, match=message):
        read_description(tmp_path)


def test_a_folder_or_a_special_file_in_place_of_the_config_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r'has no config\.json'):
        load_config(tmp_path)
    (tmp_path / 'config.json').symlink_to('/dev/zero')
    with pytest.raises(UserError, match=r'cannot be read .*Not a regular file'):
        read_description(tmp_path)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'model.backbone.arch': 'own/arch'}, 'model.backbone.arch='),
        ({'model.backbone.arch': torch.ones(1)}, 'cannot be written as data'),
    ],
)
def test_a_config_that_is_no_data_is_not_described(options, message):
    with pytest.raises(UserError, match=message):
        describe(load_config(ROOT / SEGMENTOR, options), ('a',), ((1, 2, 3),))
