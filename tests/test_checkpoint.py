"""Pretrained weights: every tensor arrives, or nothing is loaded and the reason is said."""

import argparse
from pickle import UnpicklingError

import pytest
import torch
from conftest import randomize
from mmengine.logging import HistoryBuffer
from mmengine.utils import digit_version

from xcit_mm import UserError, XCiT
from xcit_mm.checkpoint import allow_plain_classes

restricted = pytest.mark.skipif(
    digit_version(torch.__version__) < digit_version('2.6'),
    reason='before PyTorch 2.6, weights_only does not know these classes',
)
CLASSIFIER = ('cls_token', 'cls_attn_blocks.0.gamma1', 'norm.weight', 'head.bias')


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


def trunk(model: XCiT) -> dict[str, torch.Tensor]:
    return {k: v for k, v in model.state_dict().items() if not k.startswith('fpn')}


def assert_same(a: dict, b: dict) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_an_imagenet_release_loads_the_trunk(source, tmp_path):
    state = trunk(source) | {name: torch.zeros(3) for name in CLASSIFIER}
    torch.save({'model': state, 'args': argparse.Namespace(lr=1)}, tmp_path / 'imagenet.pth')
    assert_same(trunk(pretrained(tmp_path / 'imagenet.pth')), trunk(source))


def test_the_backbone_of_a_detector_loads_with_its_pyramid(source, tmp_path):
    state = {f'backbone.{k}': v for k, v in source.state_dict().items()}
    state['neck.lateral_convs.0.conv.weight'] = torch.zeros(3)
    torch.save({'meta': {}, 'state_dict': state}, tmp_path / 'detector.pth')
    assert_same(pretrained(tmp_path / 'detector.pth').state_dict(), source.state_dict())


def test_a_plain_state_loads(source, tmp_path):
    torch.save(source.state_dict(), tmp_path / 'plain.pth')
    assert_same(pretrained(tmp_path / 'plain.pth').state_dict(), source.state_dict())


@pytest.mark.parametrize(
    ('kwargs', 'named'),
    [
        (dict(arch='t12'), r'patch_embed\.proj\.0\.0\.weight is \(16, 3, 3, 3\) in the file'),
        (dict(patch_size=8), r'patch_embed\.proj'),
        (dict(arch='t24'), r'tensors differ'),
    ],
)
def test_the_weights_of_another_model_are_refused_with_the_first_differences(
    source, tmp_path, kwargs, named
):
    torch.save({'model': trunk(source)}, tmp_path / 'n12_16.pth')
    with pytest.raises(UserError, match=named):
        pretrained(tmp_path / 'n12_16.pth', **kwargs)


def test_a_file_in_which_nothing_matches_is_refused(tmp_path):
    torch.save({'model': {'conv1.weight': torch.zeros(3)}}, tmp_path / 'resnet.pth')
    with pytest.raises(UserError, match=r'resnet\.pth.*tensors differ'):
        pretrained(tmp_path / 'resnet.pth')


def test_a_file_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(UserError, match=r'gone\.pth cannot be read \(FileNotFoundError'):
        pretrained(tmp_path / 'gone.pth')


@pytest.mark.parametrize('content', [b'<html>Not Found</html>', b''])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, content):
    (tmp_path / 'page.pth').write_bytes(content)
    with pytest.raises(UserError, match=r'page\.pth cannot be read'):
        pretrained(tmp_path / 'page.pth')


def test_a_truncated_file_is_refused(source, tmp_path):
    torch.save(source.state_dict(), tmp_path / 'part.pth')
    content = (tmp_path / 'part.pth').read_bytes()
    (tmp_path / 'part.pth').write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r'part\.pth cannot be read'):
        pretrained(tmp_path / 'part.pth')


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


@restricted
def test_the_history_of_a_run_is_read_without_running_pickled_code(tmp_path):
    allow_plain_classes()  # again: onedl's mmengine takes some back after a file that it read
    history = HistoryBuffer([1.0, 3.0], [1, 1])
    torch.save({'message_hub': history}, tmp_path / 'run.pth')
    loaded = torch.load(tmp_path / 'run.pth', weights_only=True)['message_hub']
    assert loaded.statistics('mean') == 2.0


class Payload:
    def __reduce__(self):
        return getattr, (HistoryBuffer, '__init__')


@restricted
def test_getattr_in_a_file_reaches_nothing_but_the_history(tmp_path):
    allow_plain_classes()
    torch.save({'state_dict': Payload()}, tmp_path / 'payload.pth')
    with pytest.raises(UnpicklingError, match='no checkpoint needs'):
        torch.load(tmp_path / 'payload.pth', weights_only=True)
