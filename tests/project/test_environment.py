"""Packages that are missing or do not fit: the reason and what to install."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile

import pytest
from helpers import ROOT
from helpers.runs import DETECTOR, SEGMENTOR
from helpers.tool_server import Process

from xcit_mm import environment
from xcit_mm.environment import DependencyError

IMPORTED_FIRST = ('torch', 'cv2', 'mmengine')  # in this order, by xcit_mm
# Runs a tool without the package that is named first.
WITHOUT = """
import runpy, sys
package, *sys.argv = sys.argv[1:]
for name in [name for name in sys.modules if name.split('.')[0] == package]:
    del sys.modules[name]
sys.modules[package] = None
runpy.run_path(sys.argv[0], run_name='__main__')
"""


def plant(folder: Path, package: str, code: str) -> None:
    (folder / package).mkdir()
    (folder / package / '__init__.py').write_text(code)


@pytest.mark.parametrize('package', IMPORTED_FIRST)
def test_a_missing_package_is_a_line_with_the_extra_to_install(tmp_path, package):
    for name in IMPORTED_FIRST[: IMPORTED_FIRST.index(package)]:
        plant(tmp_path, name, '')
    plant(tmp_path, package, f'raise ModuleNotFoundError("No module", name={package!r})')
    command = [sys.executable, ROOT / 'tools/make_shapes.py', tmp_path / 'shapes']
    variables = os.environ | {'PYTHONPATH': str(tmp_path)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert f'the package {package} is not installed: pip install -e' in line


@pytest.mark.parametrize(
    ('package', 'config'), [('mmcv', DETECTOR), ('mmdet', DETECTOR), ('mmseg', SEGMENTOR)]
)
def test_a_missing_framework_is_named_before_a_model_is_built(shapes_root, package, config):
    with TemporaryFile('w+') as output:
        arguments = ['tools/train.py', config, '--cfg-options', f'data_root={shapes_root}']
        assert Process(['-c', WITHOUT, package, *arguments], output, output).wait() == 2
        output.seek(0)
        assert f'the package {package} is not installed' in output.read().splitlines()[-1]


def test_a_torchvision_built_for_another_torch_is_explained(tmp_path, monkeypatch):
    plant(tmp_path, 'torchvision', 'raise RuntimeError("operator torchvision::nms does not exist")')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, 'torchvision', raising=False)
    from mmcv.utils import ext_loader  # what imports the operators of mmcv

    with pytest.raises(DependencyError, match=r'built for another torch.*--force-reinstall torch '):
        ext_loader.load_ext('_ext', ['nms'])


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
