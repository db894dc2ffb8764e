"""Packages that are missing or do not fit: the reason and what to install."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.in_process import call_tool
from helpers.runs import DETECTOR, SEGMENTOR

from xcit_mm.base import environment
from xcit_mm.base.environment import DependencyError

MISSING = 'ModuleNotFoundError("No module", name=__name__)'
IMPORTED_FIRST = ('torch', 'cv2', 'mmengine')  # in this order, by xcit_mm


def plant(folder: Path, package: str, code: str) -> None:
    (folder / package).mkdir()
    (folder / package / '__init__.py').write_text(code)


def start(planted: Path, *command: object) -> subprocess.CompletedProcess:
    """Start Python with planted packages before the installed ones."""
    variables = os.environ | {'PYTHONPATH': str(planted)}
    options = dict(cwd=ROOT, env=variables, capture_output=True, text=True)
    return subprocess.run([sys.executable, *map(str, command)], **options)


@pytest.mark.parametrize('package', [*IMPORTED_FIRST, 'mmcv'])
def test_a_missing_package_is_a_line_with_the_extra_to_install(tmp_path, package):
    if package != 'mmcv':  # which the package imports after it has used the others
        for name in IMPORTED_FIRST[: IMPORTED_FIRST.index(package)]:
            plant(tmp_path, name, '')
    plant(tmp_path, package, f'raise {MISSING}')
    done = start(tmp_path, 'tools/make_shapes.py', tmp_path / 'shapes')
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert f'the package {package} is not installed: pip install -e' in line


@pytest.mark.parametrize(
    ('package', 'config', 'error', 'message'),
    [
        ('mmdet', DETECTOR, MISSING, 'the package mmdet is not installed'),
        ('mmseg', SEGMENTOR, MISSING, 'the package mmseg is not installed'),
        (
            'torchvision',
            DETECTOR,
            'RuntimeError("operator torchvision::nms does not exist")',
            'was built for another torch .*: pip install --force-reinstall torch torchvision',
        ),
    ],
)
def test_a_package_that_is_missing_or_does_not_fit_is_named_before_a_model_is_built(
    monkeypatch, capfd, shapes_root, tmp_path, package, config, error, message
):
    plant(tmp_path, package, f'raise {error}')
    monkeypatch.syspath_prepend(tmp_path)
    for name in list(sys.modules):
        if name.partition('.')[0] == package:
            monkeypatch.delitem(sys.modules, name)
    arguments = ['--work-dir', tmp_path / 'run', '--cfg-options', f'data_root={shapes_root}']
    code, _, errors = call_tool(monkeypatch, capfd, 'train.py', config, *arguments)
    assert code == 2
    assert re.search(message, errors.splitlines()[-1])


@pytest.mark.parametrize(
    ('installed', 'code', 'remedy'),
    [
        ('mmdet', 'raise ModuleNotFoundError("", name="timm")', 'timm is not.*: pip install timm'),
        ('onedl-mmcv', 'import a_missing_package', r'a_missing_package is not.*pip install.*onedl'),
        ('mmdet', 'raise AssertionError("MMCV==2.2.0 is used")', r'install "mmcv-lite<2\.2"'),
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
