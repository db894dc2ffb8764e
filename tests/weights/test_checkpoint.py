"""Pretrained weights: every tensor arrives, or nothing is loaded and the reason is said."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from helpers import randomize, relative_error
from mmengine.logging import HistoryBuffer
from safetensors.torch import save_file
from torch import Tensor

from xcit_mm import UserError, XCiT
from xcit_mm.weights.checkpoint import (
    backbone_state,
    convert,
    detector_state,
    load_pretrained,
    model_state,
    read_checkpoint,
    require_same_tensors,
)
from xcit_mm.weights.pretrained import require_file


@pytest.fixture
def source() -> XCiT:
    model = XCiT('n12', 16)
    randomize(model)
    return model


def pretrained(path, **kwargs) -> XCiT:
    model = XCiT(
        **{'arch': 'n12', 'patch_size': 16} | kwargs,
        init_cfg=dict(type='Pretrained', checkpoint=str(path)),
    )
    model.init_weights()
    return model


def trunk(model: XCiT) -> dict[str, Tensor]:
    return {k: v for k, v in model.state_dict().items() if not k.startswith('fpn')}


def classifier() -> dict[str, Tensor]:
    """What the classifiers of the release have beside the trunk, in their layout."""
    block = 'cls_attn_blocks.0.'
    linear = {'attn.qkv': (384, 128), 'attn.proj': (128, 128), 'mlp.fc1': (512, 128)}
    state = {f'{block}{name}.weight': torch.zeros(shape) for name, shape in linear.items()}
    return state | {
        'cls_token': torch.zeros(1, 1, 128),
        f'{block}gamma1': torch.zeros(128),
        'norm.weight': torch.ones(128),
        'head.weight': torch.zeros(1000, 128),
        'head.bias': torch.zeros(1000),
    }


def prefixed(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in state.items()}


def imagenet(model: XCiT):
    return {'model': trunk(model) | classifier(), 'args': argparse.Namespace(lr=1)}


def dino(model: XCiT):
    """The plain file: the teacher's backbone."""
    return trunk(model) | {k: v for k, v in classifier().items() if not k.startswith('head')}


def dino_training(model: XCiT):
    """The file of a DINO training: the teacher is the model, the student is another one."""
    other = XCiT('n12', 16)
    head = {'head.mlp.0.weight': torch.zeros(2), 'head.last_layer.weight_g': torch.zeros(2)}
    return {
        'student': prefixed(prefixed(dino(other), 'backbone.') | head, 'module.'),
        'teacher': prefixed(dino(model), 'backbone.') | head,
        'optimizer': {'state': {}},
        'epoch': 3,
        'args': argparse.Namespace(arch='xcit'),
    }


def dino_student(model: XCiT):
    return {'student': prefixed(dino(model), 'module.backbone.')}


def timm_file(model: XCiT):
    state = trunk(model) | classifier()
    return {name.replace('pos_embeder.', 'pos_embed.'): value for name, value in state.items()}


def mmdet2(model: XCiT):
    """A detector of mmdet 2: its meta and the optimizer's state beside the weights."""
    return {
        'meta': {'mmdet_version': '2.11.0', 'CLASSES': ('person',), 'epoch': 36, 'lr': [1e-4]},
        'state_dict': prefixed(model.state_dict(), 'backbone.')
        | {'neck.lateral_convs.0.conv.weight': torch.zeros(3)},
        'optimizer': {'state': {0: {'step': 1, 'exp_avg': torch.zeros(3)}}, 'param_groups': []},
    }


def mmengine_file(model: XCiT):
    return mmdet2(model) | {
        'message_hub': {'log_scalars': {'loss': HistoryBuffer([1.0, 3.0], [1, 1])}},
        'param_schedulers': [{'last_step': 3, '_get_lr_called_within_step': False}],
    }


def whole(model: XCiT):
    return model.state_dict()


TRUNK_FORMATS = [imagenet, dino, dino_training, dino_student, timm_file]
WHOLE_FORMATS = [mmdet2, mmengine_file, whole]


@pytest.mark.parametrize('layout', TRUNK_FORMATS + WHOLE_FORMATS, ids=lambda f: f.__name__)
def test_every_format_gives_the_maps_of_its_source(source, tmp_path, layout: Callable):
    torch.save(layout(source), tmp_path / 'weights')  # no ending: it says nothing
    loaded = pretrained(tmp_path / 'weights')
    if layout in TRUNK_FORMATS:
        for level in ('fpn1', 'fpn2'):  # the file has none
            getattr(loaded, level).load_state_dict(getattr(source, level).state_dict())
    image = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        for a, b in zip(loaded.eval()(image), source.eval()(image), strict=True):
            assert relative_error(a, b) < 1e-5


def test_timm_by_name_reads_the_hub_cache(tmp_path):
    """The hub's own layout of a fetched model, and no network."""
    theirs = timm.create_model('xcit_nano_12_p16_224')
    randomize(theirs)
    cache = tmp_path / 'models--timm--xcit_nano_12_p16_224.fb_in1k'
    (cache / 'refs').mkdir(parents=True)
    (cache / 'refs' / 'main').write_text('0' * 40)
    snapshot = cache / 'snapshots' / ('0' * 40)
    snapshot.mkdir(parents=True)
    save_file(theirs.state_dict(), snapshot / 'model.safetensors')
    command = (
        'from xcit_mm import XCiT; import torch, sys;'
        "m = XCiT('n12', 16, init_cfg=dict(type='Pretrained', checkpoint=sys.argv[1]));"
        'm.init_weights(); torch.save(m.state_dict(), sys.argv[2])'
    )
    name = 'timm://xcit_nano_12_p16_224.fb_in1k'
    run_python(command, name, tmp_path / 'ours.pth', HF_HUB_CACHE=tmp_path, HF_HUB_OFFLINE='1')
    ours = torch.load(tmp_path / 'ours.pth')
    for key, value in backbone_state(theirs.state_dict()).items():
        assert torch.equal(ours[key], value), key


def run_python(command: str, *args, **env) -> str:
    done = subprocess.run(
        [sys.executable, '-c', command, *map(str, args)],
        env=os.environ | {k: str(v) for k, v in env.items()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


def test_a_name_that_timm_does_not_have_is_refused():
    with pytest.raises(UserError, match=r'timm://resnet50: timm has no XCiT of that name'):
        read_checkpoint('timm://resnet50')


def test_timm_without_a_network_says_what_to_do(tmp_path):
    command = (
        'from xcit_mm.weights.checkpoint import read_checkpoint\n'
        "try: read_checkpoint('timm://xcit_nano_12_p16_224.fb_in1k')\n"
        'except Exception as error: print(type(error).__name__, error)'
    )
    output = run_python(command, HF_HUB_CACHE=tmp_path, HF_HUB_OFFLINE='1')
    assert 'UserError timm://xcit_nano_12_p16_224.fb_in1k cannot be fetched' in output
    assert 'name the file instead' in output


def test_safetensors_are_read_whatever_they_are_called(source, tmp_path):
    save_file(timm_file(source), tmp_path / 'weights.pth')
    assert_same(trunk(pretrained(tmp_path / 'weights.pth')), trunk(source))


def assert_same(a: dict, b: dict) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_the_log_says_how_much_came_and_what_starts_at_random(source, tmp_path, log):
    torch.save(imagenet(source), tmp_path / 'imagenet.pth')
    pretrained(tmp_path / 'imagenet.pth', out_norm=True)
    output = '\n'.join(log)
    num_given, num_wanted = len(trunk(source)), len(source.state_dict()) + 8
    assert f'Loaded {num_given} of the {num_wanted} tensors of XCiT' in output
    assert 'start at random' in output
    assert all(name in output for name in ('fpn1.0', 'fpn1.3', 'fpn2.0', 'out_norms.3'))


def test_the_states_are_not_changed(source):
    for layout in (imagenet, timm_file, mmdet2):
        checkpoint = layout(source)
        state = model_state(checkpoint, 'file')
        names = list(state)
        backbone_state(state)
        detector_state(state)
        assert list(state) == names


def test_a_detector_of_the_release_keeps_its_names(source):
    state = mmdet2(source)['state_dict']
    assert_same(detector_state(state), state)
    with_classifier = state | prefixed(classifier(), 'backbone.')
    assert_same(detector_state(with_classifier), state)


@pytest.mark.parametrize(
    ('kwargs', 'named'),
    [
        (
            dict(arch='t12'),
            r'an XCiT of 12 layers, 128 channels, 4 heads and patch size 16 \('
            r'patch_embed\.proj\.0\.0\.weight \(16, 3, 3, 3\), .*; the model has '
            r'an XCiT of 12 layers, 192 channels, 4 heads and patch size 16 \('
            r'patch_embed\.proj\.0\.0\.weight \(24, 3, 3, 3\)',
        ),
        (dict(patch_size=8), r'patch size 16 .* patch size 8'),
        (dict(arch='t24'), r'an XCiT of 12 layers.*an XCiT of 24 layers'),
        (dict(arch=dict(embed_dim=128, depth=12, num_heads=8, eta=1.0)), r'4 heads.*8 heads'),
    ],
)
def test_the_weights_of_another_arch_are_refused_with_both_sides(source, tmp_path, kwargs, named):
    torch.save(imagenet(source), tmp_path / 'n12_16.pth')
    with pytest.raises(UserError, match=rf'n12_16\.pth does not hold .*{named}'):
        pretrained(tmp_path / 'n12_16.pth', **kwargs)


def test_a_file_in_which_nothing_matches_is_refused_with_both_sides(tmp_path):
    torch.save({'model': {'conv1.weight': torch.zeros(64, 3, 7, 7)}}, tmp_path / 'resnet.pth')
    with pytest.raises(
        UserError,
        match=r'the file has no XCiT \(conv1\.weight \(64, 3, 7, 7\)\); '
        r'the model has .*patch_embed\.proj\.0\.0\.weight \(16, 3, 3, 3\), ',
    ):
        pretrained(tmp_path / 'resnet.pth')


def test_a_tensor_that_is_missing_or_left_over_is_refused(source, tmp_path):
    state = source.state_dict()
    state['blocks.12.gamma1'] = torch.zeros(128)
    torch.save(state, tmp_path / 'more.pth')
    with pytest.raises(UserError, match=r'1 tensors differ.*blocks\.12\.gamma1 \(128,\)'):
        pretrained(tmp_path / 'more.pth')
    del state['blocks.12.gamma1'], state['blocks.11.gamma1']
    torch.save(state, tmp_path / 'less.pth')
    with pytest.raises(UserError, match=r'1 tensors differ.*blocks\.11\.gamma1 \(128,\)'):
        pretrained(tmp_path / 'less.pth')


def test_nothing_is_loaded_from_a_file_that_is_refused(source, tmp_path):
    state = source.state_dict()
    del state['blocks.11.gamma1']
    torch.save(state, tmp_path / 'less.pth')
    model = XCiT('n12', 16)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UserError):
        load_pretrained(model, tmp_path / 'less.pth')
    assert_same(model.state_dict(), before)


def test_a_file_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(UserError, match=r'gone\.pth cannot be read: FileNotFoundError'):
        pretrained(tmp_path / 'gone.pth')


@pytest.mark.parametrize(
    ('content', 'why'),
    [
        (b'<!DOCTYPE html><html>Not Found</html>', 'it is a web page'),
        (b'\n<html>', 'it is a web page'),
        (b'', 'it is empty'),
        (b'version https://git-lfs', 'no checkpoint'),
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, content, why):
    (tmp_path / 'page.pth').write_bytes(content)
    with pytest.raises(UserError, match=rf'page\.pth cannot be read: .*{why}'):
        pretrained(tmp_path / 'page.pth')


def test_a_truncated_file_is_refused(source, tmp_path):
    path = tmp_path / 'part.pth'
    torch.save(source.state_dict(), path)
    pretrained(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r'part\.pth cannot be read: it is cut off') as error:
        pretrained(path)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('content', [[1, 2], {'epoch': 3}, {'model': 'xcit'}])
def test_a_file_without_weights_is_refused(tmp_path, content):
    torch.save(content, tmp_path / 'other.pth')
    with pytest.raises(UserError, match='holds no state dict'):
        pretrained(tmp_path / 'other.pth')


@pytest.mark.parametrize(
    'init_cfg', [dict(type='Pretrained'), [dict(type='Pretrained')], dict(checkpoint='a.pth')]
)
def test_an_init_cfg_that_would_load_nothing_is_refused(init_cfg):
    with pytest.raises(UserError, match='init_cfg'):
        XCiT('n12', 16, init_cfg=init_cfg).init_weights()


class Payload:
    """Code that leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_code_in_a_file_is_not_run_unless_it_is_trusted(source, tmp_path):
    trace = tmp_path / 'trace'
    torch.save({'model': trunk(source), 'hook': Payload(trace)}, tmp_path / 'code.pth')
    with pytest.raises(UserError, match=r'more than weights \(.*\).*--trust-checkpoint'):
        pretrained(tmp_path / 'code.pth')
    assert not trace.exists()

    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'code.pth'), trusted=True)
    model = XCiT('n12', 16, init_cfg=init_cfg)
    model.init_weights()
    assert trace.exists()
    assert_same(trunk(model), trunk(source))


@pytest.mark.parametrize('layout', TRUNK_FORMATS, ids=lambda f: f.__name__)
def test_a_converted_classifier_is_the_trunk(source, tmp_path, layout):
    torch.save(layout(source), tmp_path / 'source.pth')
    said = convert(tmp_path / 'source.pth', tmp_path / 'target.pth')
    assert '12 layers, 128 channels, 4 heads and patch size 16' in said
    converted = torch.load(tmp_path / 'target.pth', weights_only=True)
    assert_same(converted['state_dict'], trunk(source))


def test_a_converted_detector_is_whole(source, tmp_path):
    state = mmdet2(source)['state_dict'] | {'rpn_head.rpn_conv.weight': torch.zeros(3)}
    torch.save({'state_dict': state}, tmp_path / 'source.pth')
    convert(tmp_path / 'source.pth', tmp_path / 'target.pth')
    assert_same(torch.load(tmp_path / 'target.pth')['state_dict'], state)


def test_a_conversion_overwrites_nothing_and_leaves_nothing_half(source, tmp_path):
    torch.save(imagenet(source), tmp_path / 'source.pth')
    (tmp_path / 'target.pth').write_text('mine')
    with pytest.raises(UserError, match='is there already'):
        convert(tmp_path / 'source.pth', tmp_path / 'target.pth')
    assert (tmp_path / 'target.pth').read_text() == 'mine'
    with pytest.raises(UserError, match='cannot be written'):
        convert(tmp_path / 'source.pth', tmp_path / 'nowhere' / 'target.pth')
    torch.save({'conv1.weight': torch.zeros(3)}, tmp_path / 'resnet.pth')
    with pytest.raises(UserError, match=r'holds no XCiT \(conv1\.weight \(3,\)\)'):
        convert(tmp_path / 'resnet.pth', tmp_path / 'new.pth')
    assert {p.name for p in tmp_path.iterdir()} == {'source.pth', 'target.pth', 'resnet.pth'}


@pytest.mark.parametrize(
    ('weight', 'said'),
    [
        (torch.ones(2, dtype=torch.int64), r'the file has .*a \(2,\) of torch\.int64.*; the model'),
        (torch.ones(2).to_sparse(), r'a \(2,\), not stored number by number'),
        (torch.ones(2, device='meta'), r'a \(2,\), not stored number by number'),
        (torch.ones(2, dtype=torch.complex64), r'a \(2,\) of complex numbers'),
        (torch.tensor([1.0, float('nan')]), r'holds numbers in a that are infinite or none'),
        (torch.tensor([1.0, float('inf')], dtype=torch.float16), 'are infinite'),
        (torch.tensor([1e300, 1.0], dtype=torch.float64), 'are infinite'),
    ],
)
def test_a_tensor_that_would_be_loaded_as_something_else_is_refused(weight, said):
    with pytest.raises(UserError, match=said):
        require_same_tensors({'a': weight}, {'a': torch.zeros(2)}, 'file.pth')


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float64])
def test_floats_of_another_size_are_loaded(dtype):
    large = torch.finfo(dtype).max if dtype == torch.float16 else 3e38
    weights = {'a': torch.full((9,), large, dtype=dtype)}  # whose sum is infinite
    require_same_tensors(weights, {'a': torch.zeros(9)}, 'file.pth')


def test_two_weights_of_one_name_are_refused():
    with pytest.raises(UserError, match=r'file\.pth holds module\.a a second time'):
        model_state({'a': torch.zeros(1), 'module.a': torch.ones(1)}, 'file.pth')


def test_a_flipped_bit_is_seen_in_a_file_that_is_trusted(source, tmp_path):
    torch.save(source.state_dict(), tmp_path / 'a.pth')
    content = bytearray((tmp_path / 'a.pth').read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / 'a.pth').write_bytes(content)
    with pytest.raises(UserError, match=r'a\.pth cannot be read: .*damaged .*CRC'):
        read_checkpoint(tmp_path / 'a.pth', trusted=True)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / 'a.pth')
    with pytest.raises(UserError, match='Not a regular file'):
        read_checkpoint(tmp_path / 'a.pth')
    with pytest.raises(UserError, match='is a device or a pipe'):
        require_file(str(tmp_path / 'a.pth'))


def test_a_tensor_of_very_many_dimensions_is_refused(tmp_path):
    header = json.dumps({'a': dict(dtype='F32', shape=[1] * 10**5, data_offsets=[0, 4])}).encode()
    path = tmp_path / 'a.safetensors'
    path.write_bytes(len(header).to_bytes(8, 'little') + header + bytes(4))
    with pytest.raises(UserError, match='more than 64 dimensions'):
        read_checkpoint(path)


def test_an_array_of_strings_without_characters_is_refused(tmp_path):
    """Its copy has some: 200 bytes became gigabytes."""
    empty = np.zeros(0, 'b')
    empty.__setstate__((1, (2**20,), np.dtype('U0'), False, b''))
    torch.save({'a': empty}, tmp_path / 'a.pth')
    with pytest.raises(UserError, match='an array is not as large as its content'):
        read_checkpoint(tmp_path / 'a.pth')
    torch.save({'b': np.str_('')}, tmp_path / 'a.pth')
    assert read_checkpoint(tmp_path / 'a.pth') == {'b': ''}
