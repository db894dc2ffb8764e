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
# Runs a tool as if the package that is named first were not installed.
WITHOUT = """
import runpy, sys
package, *sys.argv = sys.argv[1:]
for name in list(sys.modules):
    if name.startswith((package, 'xcit_mm.datasets.coco', 'xcit_mm.engine.iou_metric')):
        del sys.modules[name]

class Missing:
    def find_spec(name, *args):
        if name.startswith(package):
            raise ModuleNotFoundError(name, name=package)

sys.meta_path.insert(0, Missing)
runpy.run_path(sys.argv[0], run_name='__main__')
"""


def plant(folder: Path, package: str, code: str) -> None:
    (folder / package).mkdir()
    (folder / package / '__init__.py').write_text(code)


def start(planted: Path, *command: object) -> subprocess.CompletedProcess:
    """Start Python with planted packages before the installed ones."""
    variables = os.environ | {'PYTHONPATH': str(planted)}
    options = dict(cwd=ROOT, env=variables, capture_output=True, text=True)
    return subprocess.run([sys.executable, *map(str, command)], **options)


@pytest.mark.parametrize('package', IMPORTED_FIRST)
def test_a_missing_package_is_a_line_with_the_extra_to_install(tmp_path, package):
    for name in IMPORTED_FIRST[: IMPORTED_FIRST.index(package)]:
        plant(tmp_path, name, '')
    plant(tmp_path, package, f'raise ModuleNotFoundError("No module", name={package!r})')
    done = start(tmp_path, 'tools/make_shapes.py', tmp_path / 'shapes')
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


def test_a_torchvision_built_for_another_torch_is_explained(shapes_root, tmp_path):
    plant(tmp_path, 'torchvision', 'raise RuntimeError("operator torchvision::nms does not exist")')
    data = ['--cfg-options', f'data_root={shapes_root}']
    done = start(tmp_path, 'tools/train.py', DETECTOR, *data)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert 'was built for another torch' in line
    assert 'pip install --force-reinstall torch torchvision' in line


@pytest.mark.parametrize(
    ('installed', 'code', 'remedy'),
    [
        ('mmdet', 'import a_missing_package', r'a_missing_package is not.*pip install.*openmmlab'),
        ('onedl-mmcv', 'import a_missing_package', r'a_missing_package is not.*pip install.*onedl'),
        ('mmdet', 'raise AssertionError("MMCV==2.2.0 is used")', r'install "mmcv-lite<2\.2"'),
        ('onedl-mmcv', 'raise AssertionError("MMCV==2.2.0")', r'--force-reinstall .*onedl-mmcv'),
        ('mmdet', 'raise AssertionError("mmengine==0.5.0")', r'mmengine==0\.5\.0.*pip install -e'),
        ('mmdet', 'raise ImportError("_ext.so: undefined symbol")', r'_ext\.so.*mmcv-lite'),
        ('mmdet', 'raise ImportError("libtorch_cpu.so")', r'pip install -e.*docs/errors\.md'),
    ],
)
def test_a_package_that_cannot_be_imported_comes_with_a_remedy_in_its_family(
    tmp_path, monkeypatch, installed, code, remedy
):
    plant(tmp_path, 'broken_framework', code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(environment, 'installed', lambda name: '1.0' if name == installed else None)
    with pytest.raises(DependencyError, match=remedy):
        environment.require('broken_framework')


def test_both_families_in_one_environment_are_refused(monkeypatch):
    environment.require_one_stack()
    monkeypatch.setattr(environment, 'installed', lambda package: '1.0')
    with pytest.raises(DependencyError, match=r'pip uninstall -y onedl-mmengine.*mmdet'):
        environment.require_one_stack()
