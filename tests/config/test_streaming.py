"""``stream`` in a config: what it changes, and what it refuses before anything is built."""

import pytest
import torch
from helpers.scenes import DETECTOR, SEGMENTOR, scene_config
from mmengine.config import Config

from xcit_mm import UserError
from xcit_mm.config import streaming
from xcit_mm.config.adapt import adapt_for_test, adapt_for_training
from xcit_mm.config.load import load_config
from xcit_mm.config.rules import check

DELETED = dict(_delete_=True)
REFUSED = [
    (dict(stream=dict(store='/dev/null/store')), r'the folder /dev/null/store cannot be written'),
    (dict(model_wrapper_cfg=dict(type='FSDP')), r"'FSDP'\} both wrap the model: drop one"),
    (dict(train_dataloader=dict(batch_size=2)), r'train_.*batch_size=2: whole images are streamed'),
    (dict(val_dataloader=dict(batch_size=2)), r'val_dataloader\.batch_size=2: .*batch_size=1'),
    (
        dict(
            stream=dict(shared=True),
            train_dataloader=dict(sampler=dict(type='MultiSourceSampler', **DELETED)),
        ),
        r'sampler: stream\.shared=True cannot share .* MultiSourceSampler: use DefaultSampler',
    ),
    (
        dict(train_dataloader=dict(dataset=dict(pipeline=[dict(type='LoadImage')]))),
        'train_dataloader: stream computes whole images, which OpenImage reads by windows',
    ),
]


def adapted(tmp_path, root, name=SEGMENTOR, **values) -> tuple[Config, list[str]]:
    cfg = load_config(scene_config(tmp_path, name, **values), dict(data_root=str(root)))
    return cfg, adapt_for_training(cfg)


@pytest.mark.parametrize(('values', 'message'), REFUSED)
def test_what_cannot_be_streamed_is_refused(shapes_root, tmp_path, values, message):
    with pytest.raises(UserError, match=message):
        check(adapted(tmp_path, shapes_root, **values)[0], 'train')


@pytest.mark.parametrize('name', [SEGMENTOR, DETECTOR])
def test_a_config_that_fits_passes(shapes_root, tmp_path, name):
    cfg, notes = adapted(tmp_path, shapes_root, name, augmented=True)
    check(cfg, 'train')
    wrapper = dict(type='StreamedModel', memory=2**30, store=None, shared=False, train=True)
    assert cfg.model_wrapper_cfg == wrapper
    assert cfg.default_hooks.room.type == 'RoomCheckHook'
    assert any(note.startswith('Whole images are streamed') for note in notes)
    adapt_for_training(cfg)  # as a config that a run has written
    assert cfg.model_wrapper_cfg == wrapper


def test_each_edit_has_a_sentence(shapes_root, tmp_path):
    values = dict(
        stream=dict(memory=1e9, shared=True),
        sync_bn='torch',
        train_dataloader=dict(num_workers=2, persistent_workers=True),
        default_hooks=dict(visualization=dict(type='SegVisualizationHook', draw=True)),
    )
    cfg, notes = adapted(tmp_path, shapes_root, **values)
    assert cfg.model_wrapper_cfg == dict(
        type='StreamedModel', memory=10**9, store=None, shared=True, train=True
    )
    assert cfg.get('sync_bn') is None
    assert cfg.train_dataloader.num_workers == 0
    assert 'timeout' not in cfg.train_dataloader
    assert cfg.train_dataloader.sampler.type == 'SharedSampler'
    assert 'visualization' not in cfg.default_hooks
    for start in (
        'train_dataloader: num_workers=0, because windows are read in this process.',
        'default_hooks.visualization is removed',
        'sync_bn is unset',
        'The processes share each image: SharedSampler',
    ):
        assert any(note.startswith(start) for note in notes), start


def test_transforms_of_windows_need_a_stream(shapes_root, tmp_path):
    cfg, _ = adapted(tmp_path, shapes_root, augmented=True)
    cfg.stream = None
    assert 'StreamedModel is removed: stream is None.' in adapt_for_training(cfg)
    assert cfg.get('model_wrapper_cfg') is None
    assert 'room' not in cfg.default_hooks
    with pytest.raises(UserError, match=r"OpenImage opens images .* add stream=dict\(memory='2Gi"):
        check(cfg, 'train')


@pytest.mark.parametrize(
    ('dtype', 'is_native', 'expected'),
    [
        (None, True, dict(type='AmpOptimWrapper', dtype='bfloat16')),
        ('float16', False, dict(type='OptimWrapper')),
        ('float32', True, dict(type='AmpOptimWrapper', dtype='float32')),
    ],
)
def test_float16_becomes_bfloat16_on_a_gpu_that_has_it(monkeypatch, dtype, is_native, expected):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'is_bf16_supported', lambda **_: is_native)
    cfg = Config(dict(stream={}, optim_wrapper=dict(type='AmpOptimWrapper', dtype=dtype)))
    notes = streaming.stream_in_dtype(cfg)
    assert cfg.optim_wrapper == expected
    assert bool(notes) == (dtype != 'float32')


def test_a_test_computes_in_the_dtype_that_is_asked_for(shapes_root, tmp_path):
    for dtype, expected in ((None, 'float32'), ('bfloat16', 'bfloat16')):
        cfg = load_config(scene_config(tmp_path), dict(data_root=str(shapes_root)))
        notes = adapt_for_test(cfg, 'weights.pth', dtype=dtype)
        assert cfg.model_wrapper_cfg.dtype == expected
        assert cfg.test_cfg.type == 'TestLoop'
        assert f'The model computes in {expected}.' in notes
