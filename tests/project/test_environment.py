"""Packages that are missing or do not fit: the reason and what to install."""

import os
import subprocess
from pathlib import Path

import pytest

from xcit_mm import environment
from xcit_mm.environment import DependencyError

DETECTOR = 'configs/mask_rcnn_xcit_n12_16_shapes.py'
SEGMENTOR = 'configs/sem_fpn_xcit_n12_16_shapes.py'


@pytest.fixture
def run_train(run_tool, shapes_root, tmp_path):
    """tools/train.py with the packages planted in tmp_path before the installed ones."""

    def run(config: str = DETECTOR) -> subprocess.CompletedProcess:
        return run_tool(
            'train.py',
            config,
            '--cfg-options',
            f'data_root={shapes_root}',
            env=os.environ | {'PYTHONPATH': str(tmp_path)},
        )

    return run


def plant(folder: Path, package: str, code: str) -> None:
    (folder / package).mkdir()
    (folder / package / '__init__.py').write_text(code)


@pytest.mark.parametrize('package', ['torch', 'torchvision', 'cv2', 'mmengine'])
def test_a_missing_package_is_named_with_the_extra_to_install(tmp_path, run_train, package):
    plant(tmp_path, package, f'raise ModuleNotFoundError("No module", name={package!r})')
    done = run_train()
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert f'the package {package} is not installed' in line
    assert 'pip install -e' in line


@pytest.mark.parametrize(
    ('package', 'config'), [('mmcv', DETECTOR), ('mmdet', DETECTOR), ('mmseg', SEGMENTOR)]
)
def test_a_missing_framework_is_named_before_a_model_is_built(tmp_path, run_train, package, config):
    plant(tmp_path, package, f'raise ModuleNotFoundError("No module", name={package!r})')
    done = run_train(config)
    assert done.returncode == 2
    assert f'the package {package} is not installed' in done.stderr.strip().splitlines()[-1]


def test_a_torchvision_built_for_another_torch_is_explained(tmp_path, run_train):
    plant(tmp_path, 'torchvision', 'raise RuntimeError("operator torchvision::nms does not exist")')
    done = run_train()
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert 'was built for another torch' in line
    assert 'pip install --force-reinstall torch torchvision' in line


@pytest.mark.parametrize(
    ('code', 'remedy'),
    [
        ('raise ImportError("libGL.so.1: cannot open shared object")', 'opencv-python-headless'),
        ('raise ImportError("mmcv/_ext.so: undefined symbol: _ZN3c10")', 'mmcv was compiled'),
        ('raise ImportError("libtorch_cpu.so: undefined symbol: iJIT")', r'pip install -e'),
        ('raise AssertionError("mmengine==0.5.0 is used")', r'mmengine==0\.5\.0.*pip install -e'),
    ],
)
def test_a_package_that_cannot_be_imported_comes_with_a_remedy(tmp_path, monkeypatch, code, remedy):
    plant(tmp_path, 'broken_framework', code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DependencyError, match=remedy):
        environment.require('broken_framework')


def test_both_stacks_in_one_environment_are_refused(monkeypatch):
    monkeypatch.setattr(environment, 'installed', lambda package: '1.0')
    with pytest.raises(DependencyError, match=r'pip uninstall -y onedl-mmengine.*mmdet'):
        environment.require_one_stack()


@pytest.mark.parametrize(('present', 'extra'), [('mmdet', 'openmmlab'), ('onedl-mmcv', 'onedl')])
def test_the_extra_of_the_stack_that_is_there_is_named(monkeypatch, present, extra):
    """Completing one stack with the other would break both."""
    monkeypatch.setattr(environment, 'installed', lambda p: '1.0' if p == present else None)
    with pytest.raises(DependencyError, match=rf'\[{extra}\]'):
        environment.require('a_package_that_is_missing')


@pytest.mark.parametrize(
    ('present', 'command'),
    [
        ('mmdet', 'pip uninstall -y mmcv mmcv-lite && pip install "mmcv-lite<2.2"'),
        ('onedl-mmcv', 'pip install --force-reinstall --no-deps onedl-mmcv'),
    ],
)
def test_the_mmcv_that_does_not_fit_is_replaced_within_its_stack(
    tmp_path, monkeypatch, present, command
):
    plant(tmp_path, 'broken_framework', 'raise AssertionError("MMCV==2.2.0 is used")')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(environment, 'installed', lambda p: '1.0' if p == present else None)
    with pytest.raises(DependencyError) as caught:
        environment.require('broken_framework')
    assert command in str(caught.value)


def test_this_environment_has_one_stack():
    environment.require_one_stack()
