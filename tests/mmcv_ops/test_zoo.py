"""The models of mmdet and mmseg: the operators that they call, and that they train and predict."""

import sys
from collections.abc import Callable

import pytest

from xcit_mm import mmcv_ops
from xcit_mm.base.environment import require_framework
from xcit_mm.base.errors import UserError
from xcit_mm.zoo import survey
from xcit_mm.zoo.configs import ZooConfig, read
from xcit_mm.zoo.operators import operators
from xcit_mm.zoo.trial import Outcome, try_model

CENTERNET = 'mmdet/centernet/centernet_r18-dcnv2_8xb16-crop512-140e_coco.py'
DEFORMABLE = {'modulated_deform_conv_forward', 'modulated_deform_conv_backward'}
# Families that call operators which the others do not.
DEMANDING = ['dcn', 'guided_anchoring', 'pisa', 'carafe', 'strong_baselines']


def called(extension: object, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set that the names of the operators go into as they are called."""
    names: set[str] = set()

    def recorded(function: Callable) -> Callable:
        return lambda *args, **kwargs: (names.add(function.__name__), function(*args, **kwargs))[1]

    for function in mmcv_ops.OPERATORS:
        operator = getattr(extension, function.__name__)
        monkeypatch.setattr(extension, function.__name__, recorded(operator))
    return names


@pytest.fixture(scope='module')
def centernet() -> ZooConfig:
    require_framework('mmdet')
    return next(config for config in read(['mmdet/centernet'])[0] if config.name == CENTERNET)


def test_a_model_calls_the_operators_that_are_listed(centernet, monkeypatch):
    listed = operators(centernet)
    names = called(sys.modules[mmcv_ops.EXTENSION], monkeypatch)
    assert try_model(centernet) == Outcome(centernet)
    assert DEFORMABLE <= names <= listed
    assert 'roi_align_forward' not in listed


@pytest.mark.skipif(not mmcv_ops.is_active(), reason='mmcv is compiled')
def test_a_model_without_its_operator_fails_for_that(centernet, monkeypatch):
    monkeypatch.delattr(sys.modules[mmcv_ops.EXTENSION], 'modulated_deform_conv_backward')
    outcome = try_model(centernet)
    assert outcome.lacks_operator
    assert 'training: MissingOperatorError: mmcv.ops: modulated_deform_conv_b' in outcome.failure


def test_a_family_of_segmentors_trains_and_predicts():
    lines = []
    report, lacks_operator = survey(['mmseg/erfnet'], lines.append)
    assert not lacks_operator
    assert 'missing operators: none' in report
    assert '1 of 1 families train and predict' in report
    assert lines[-1].endswith(': passes')


def test_an_unknown_family_is_refused_with_the_closest():
    with pytest.raises(UserError, match='did you mean mmseg/erfnet'):
        read(['mmseg/erfnets'])


@pytest.mark.slow
def test_families_that_call_many_operators_train_and_predict(run_tool, tmp_path):
    families = [*(f'mmdet/{name}' for name in DEMANDING), 'mmseg/psanet']
    done = run_tool('zoo.py', *families, '--out', tmp_path / 'zoo.md')
    assert done.returncode == 0, done.stdout + done.stderr
    report = (tmp_path / 'zoo.md').read_text()
    assert '6 of 6 families train and predict' in report
    assert '| psamask_forward | 0 | 16 |' in report
