"""A type or an argument that no class has is said in a sentence, with its place in the config."""

import pytest
from mmengine.config import Config
from mmengine.registry import MODELS, OPTIMIZERS

from xcit_mm.engine.config.errors import config_errors
from xcit_mm.errors import UserError

DETECTOR = 'configs/mask_rcnn_xcit_n12_16_shapes.py'


def build(registry, **part) -> None:
    cfg = Config(dict(part=part), cfg_text='read already', filename='own.py')
    with config_errors(cfg):
        registry.build(cfg.part)


def test_an_unknown_type_is_named_with_the_one_that_is_close():
    with pytest.raises(UserError) as error:
        build(MODELS, type='XCiTT', arch='n12')
    assert str(error.value) == (
        "the config own.py: part has type='XCiTT', which no package registers; did you mean XCiT?"
    )


def test_an_unknown_argument_is_named_with_the_one_that_is_close():
    with pytest.raises(UserError) as error:
        build(MODELS, type='XCiT', arch='n12', patchsize=8)
    assert str(error.value) == (
        'the config own.py: part: XCiT has no argument patchsize; did you mean patch_size?'
    )


def test_an_argument_of_a_class_that_is_named_by_its_module_is_named():
    says = pytest.raises(UserError, match=r'part: torch.nn.Identity has no argument patch')
    with says, config_errors(Config(dict(part=dict(type='torch.nn.Identity', patch=8)))):
        raise TypeError("Identity.__init__() got an unexpected keyword argument 'patch'")


def test_an_argument_that_is_missing_is_named():
    with pytest.raises(UserError, match=r'own.py: part: mmdet.FPN needs the argument in_channels'):
        import mmdet.models  # noqa: F401  registers it

        build(MODELS, type='mmdet.FPN', out_channels=8, num_outs=4)


@pytest.mark.parametrize('error', [KeyError('weight'), TypeError('f() takes 1 argument'), KeyError])
def test_an_error_of_code_passes(error):
    cfg = Config(dict(part=dict(type='XCiT')))
    with pytest.raises((KeyError, TypeError)), config_errors(cfg):
        raise error


def test_an_argument_that_the_config_does_not_give_is_an_error_of_code():
    with pytest.raises(TypeError), config_errors(Config(dict(part=dict(type='SGD')))):
        OPTIMIZERS.get('SGD')(params=[], momentun=0.9)


def test_a_tool_says_it_without_a_traceback(run_tool, shapes_root, tmp_path):
    done = run_tool(
        'train.py',
        DETECTOR,
        '--work-dir',
        tmp_path,
        '--cfg-options',
        f'data_root={shapes_root}',
        'default_hooks.checkpoint.intervall_of=3',
    )
    assert done.returncode == 2
    assert 'default_hooks.checkpoint has no argument intervall_of' in done.stderr
    assert 'Traceback' not in done.stderr
    assert 'Config:' not in done.stdout + done.stderr
    log = next(tmp_path.glob('*/*.log'))
    assert f'The environment, the config and the hooks are in {log}' in done.stdout + done.stderr
    assert 'System environment' in log.read_text()
    assert "type='XCiT'" in log.read_text()
