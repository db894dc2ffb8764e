"""What is built from a clone is whole: files where the clone has links, and nothing missing."""

import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from helpers import ROOT
from helpers.clone import copy_clone

import xcit_mm

NAME = f'xcit_mm-{xcit_mm.__version__}'
BUILD = 'import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[1])'
# Scripts for many GPUs start each other, as files of a clone; mim has launchers of its own.
ONLY_IN_CLONES = ('.sh', '.pyc')


def build(kind: str, source: Path, target: Path) -> Path:
    """Build a 'wheel' or an 'sdist' with the setuptools that are installed."""
    command = [sys.executable, '-c', BUILD.format(kind), str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(target.glob('*.whl' if kind == 'wheel' else '*.tar.gz'))


def files(folder: Path) -> set[str]:
    """Their paths in the folder, through links."""
    return {
        str(Path(place, name).relative_to(folder))
        for place, _, names in os.walk(folder, followlinks=True)
        for name in names
    }


@pytest.fixture(scope='module')
def clone(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp('packaging') / 'clone'
    copy_clone(path)
    return path


@pytest.fixture(scope='module')
def release(clone) -> Path:
    """The unpacked source distribution."""
    before = files(clone)
    shutil.unpack_archive(build('sdist', clone, clone.parent), clone.parent)
    for path in files(clone) - before:  # what the build left there
        (clone / path).unlink()
    return clone.parent / NAME


@pytest.fixture(scope='module')
def wheel(release) -> Iterator[zipfile.ZipFile]:
    """Built from the source distribution, which was built from the clone: what a user gets."""
    with zipfile.ZipFile(build('wheel', release, release.parent)) as archive:
        yield archive


def test_a_source_distribution_is_a_whole_clone(clone, release):
    missing = files(clone) - files(release)
    hidden = ('.ci/', '.gitignore', 'xcit_mm/.mim/tools/')
    assert not [path for path in missing if not path.startswith(hidden)]
    assert not [path for path in release.rglob('*') if path.is_symlink()]


def test_a_wheel_has_every_file_of_the_package(clone, wheel):
    wanted = {p for p in files(clone / 'xcit_mm') if not p.endswith(ONLY_IN_CLONES)}
    names = {name for name in wheel.namelist() if not name.startswith(f'{NAME}.dist-info/')}
    assert names == {f'xcit_mm/{path}' for path in wanted}
    assert {'py.typed', '.mim/model-index.yml', '.mim/tools/train.py'} <= wanted
    assert '.mim/configs/_base_/mask_rcnn_xcit.py' in wanted
    for info in wheel.infolist():
        assert not stat.S_ISLNK(info.external_attr >> 16), info.filename
    for path in wanted:
        assert wheel.read(f'xcit_mm/{path}') == (clone / 'xcit_mm' / path).read_bytes(), path


def test_a_wheel_brings_the_licences_and_what_to_install(wheel):
    assert {f'{NAME}.dist-info/licenses/{name}' for name in ('LICENSE', 'NOTICE')} <= set(
        wheel.namelist()
    )
    metadata = wheel.read(f'{NAME}.dist-info/METADATA').decode().splitlines()
    assert f'Version: {xcit_mm.__version__}' in metadata
    for extra in ('onedl', 'openmmlab', 'mim'):
        assert f'Provides-Extra: {extra}' in metadata


def test_mim_finds_in_a_clone_what_lies_in_its_root():
    for name in ('tools', 'configs', 'model-index.yml'):
        link = ROOT / 'xcit_mm' / '.mim' / name
        assert link.resolve() == ROOT / name
        if link.is_symlink():  # not in a source distribution
            assert not link.readlink().is_absolute()


def test_the_citation_names_this_version_and_the_paper():
    citation = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
    assert citation['cff-version'] == '1.2.0'
    assert citation['version'] == xcit_mm.__version__
    assert (citation['title'], citation['license']) == ('xcit_mm', 'Apache-2.0')
    (paper,) = citation['references']
    assert paper['url'].endswith('2106.09681')
    authors = [author['family-names'] for author in paper['authors']]
    assert (len(authors), authors[0], authors[-1]) == (11, 'El-Nouby', 'Jégou')
