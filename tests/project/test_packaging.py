"""The distributions that are built from a clone are whole, and OpenMMLab's mim finds them."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from helpers import ROOT
from helpers.clone import copy_clone

import xcit_mm

NAME = f'xcit_mm-{xcit_mm.__version__}'
BUILD = 'import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[1])'
DETECTOR = 'mask_rcnn_xcit_n12_16_shapes.py'


def python(cwd: Path, *arguments: object, **env: object) -> str:
    """Run Python and return what it prints."""
    variables = os.environ | {name: str(value) for name, value in env.items()}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files(folder: Path) -> set[str]:
    """Return their paths in the folder, through links."""
    return {
        str(Path(place, name).relative_to(folder))
        for place, _, names in os.walk(folder, followlinks=True)
        for name in names
        if not name.endswith('.pyc')
    }


@pytest.fixture(scope='module')
def clone(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp('packaging') / 'clone'
    copy_clone(path)
    return path


@pytest.fixture(scope='module')
def wheel(clone) -> Path:
    """What a user gets, built from the source distribution."""
    shutil.copytree(clone, clone.parent / 'built', symlinks=True)
    python(clone.parent / 'built', '-c', BUILD.format('sdist'), clone.parent)
    shutil.unpack_archive(clone.parent / f'{NAME}.tar.gz', clone.parent)
    python(clone.parent / NAME, '-c', BUILD.format('wheel'), clone.parent)
    return next(clone.parent.glob('*.whl'))


@pytest.fixture(scope='module')
def site(wheel) -> Path:
    """The folder in which pip has installed the wheel."""
    options = ['--quiet', '--no-deps', '--no-index', '--disable-pip-version-check']
    python(wheel.parent, '-m', 'pip', 'install', *options, '--target', 'site', wheel)
    return wheel.parent / 'site'


def test_a_wheel_has_every_file_of_the_package_and_what_to_install(clone, wheel):
    # Scripts for many GPUs start each other, as files of a clone; mim has launchers of its own.
    wanted = {path for path in files(clone / 'xcit_mm') if not path.endswith('.sh')}
    info = f'{NAME}.dist-info'
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith(info)}
        assert names == {'xcit_mm_command.py', *(f'xcit_mm/{path}' for path in wanted)}
        entry_points = archive.read(f'{info}/entry_points.txt').decode()
        assert {'py.typed', '.mim/model-index.yml', '.mim/tools/train.py'} <= wanted
        assert not any(stat.S_ISLNK(file.external_attr >> 16) for file in archive.infolist())
        for path in wanted:
            assert archive.read(f'xcit_mm/{path}') == (clone / 'xcit_mm' / path).read_bytes(), path
        assert {f'{info}/licenses/{name}' for name in ('LICENSE', 'NOTICE')} < {*archive.namelist()}
        metadata = archive.read(f'{info}/METADATA').decode()
    assert 'xcit = xcit_mm_command:main' in entry_points
    targets = re.findall(r'\]\(([^)]+)\)', metadata)  # of the links on the page of a package index
    assert len(targets) > 30
    assert [target for target in targets if not target.startswith(('https://', '#'))] == []
    metadata = metadata.splitlines()
    extras = {f'Provides-Extra: {extra}' for extra in ('onedl', 'openmmlab', 'mim')}
    assert {f'Version: {xcit_mm.__version__}', *extras} < {*metadata}


def test_what_docker_copies_of_a_clone_without_links_builds_the_same_wheel(clone, wheel, tmp_path):
    """Of a clone as git makes it on Windows, where the links are files with their targets."""
    copied = re.findall(r'^!(.+)$', (clone / '.dockerignore').read_text(), re.MULTILINE)
    (tmp_path / 'clone').mkdir()
    for name in copied:
        if (clone / name).is_dir():
            shutil.copytree(clone / name, tmp_path / 'clone' / name, symlinks=True)
        else:
            shutil.copy(clone / name, tmp_path / 'clone')
    for link in (tmp_path / 'clone/xcit_mm/.mim').iterdir():
        target = str(link.readlink())
        link.unlink()
        link.write_text(target)
    python(tmp_path / 'clone', '-c', BUILD.format('wheel'), tmp_path)
    built = next(tmp_path.glob('*.whl'))
    with zipfile.ZipFile(built) as archive, zipfile.ZipFile(wheel) as expected:
        of_package = [name for name in expected.namelist() if name.startswith('xcit_mm/')]
        assert of_package == [n for n in archive.namelist() if n.startswith('xcit_mm/')]
        for name in of_package:
            assert archive.read(name) == expected.read(name), name


@pytest.mark.slow
def test_mim_trains_what_pip_installed(site, shapes_root, tmp_path):
    changes = [f'data_root={shapes_root}', 'train_cfg.max_iters=3']
    for loader in ('train_dataloader', 'val_dataloader'):
        changes += [f'{loader}.num_workers=0', f'{loader}.persistent_workers=False']
    run = ('xcit_mm', DETECTOR, '--gpus', 0)  # by its name: it lies in the package
    train = (*run, '--work-dir', 'run', '--cfg-options', *changes)
    printed = python(tmp_path, '-m', 'mim', 'train', *train, PYTHONPATH=site)
    assert f'{site}/xcit_mm/.mim/tools/train.py' in printed
    assert 'Training finished successfully' in printed
    losses = (tmp_path / 'run' / 'losses.jsonl').read_text().splitlines()
    assert json.loads(losses[-1])['iter'] == 3


def test_mim_searches_the_models_and_downloads_a_config(site, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(site)
    from mim.commands.download import download
    from mim.commands.search import get_model_info

    name = 'mask_rcnn_xcit_s12_8_3x'
    largest = get_model_info('xcit_mm', filter_conditions='epochs==36,parameters>99000000')
    assert list(largest.index) == ['mask_rcnn_xcit_m24_16_3x']
    assert get_model_info('xcit_mm', configs=[name], to_dict=True)[name]['epochs'] == 36

    weights = tmp_path / 'maskrcnn_xcit_small_12_p8.pth'
    weights.touch()  # mim does not download a file that exists
    assert download('xcit_mm', [name], tmp_path) == [weights.name]
    assert 'patch_size=8' in (tmp_path / f'{name}.py').read_text()


def test_mim_finds_an_editable_install_from_the_root_of_the_clone():
    """By `python -m mim`, which looks in the folder that it is started in, as `mim` does not."""
    assert 'upernet_xcit_m24_8_160k' in python(ROOT, '-m', 'mim', 'search', 'xcit_mm')
    for name in ('tools', 'configs', 'model-index.yml'):
        link = ROOT / 'xcit_mm' / '.mim' / name
        assert link.resolve() == ROOT / name
        if link.is_symlink():  # not in a source distribution
            assert not link.readlink().is_absolute()


def test_the_citation_names_this_version_and_the_paper():
    citation = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
    assert (citation['version'], citation['license']) == (xcit_mm.__version__, 'Apache-2.0')
    assert citation['references'][0]['url'].endswith('2106.09681')
