"""OpenMMLab's mim finds configs, tools and weights of an installed xcit_mm, and runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.clone import copy_clone

pytestmark = pytest.mark.filterwarnings('ignore:pkg_resources is deprecated')
DETECTOR = 'mask_rcnn_xcit_n12_16_shapes.py'


@pytest.fixture(scope='module')
def site(tmp_path_factory) -> Path:
    """Where pip installed the package, not as a link to a clone."""
    folder = tmp_path_factory.mktemp('mim')
    copy_clone(folder / 'clone')
    pip = [sys.executable, '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check']
    options = ['--no-deps', '--no-build-isolation', '--no-index', '--target', folder / 'site']
    subprocess.run([*pip, *options, folder / 'clone'], check=True)
    return folder / 'site'


def mim(cwd: Path, *args: object, site: Path | None = None) -> str:
    """Run it, and return what it says."""
    env = {**os.environ, **({} if site is None else {'PYTHONPATH': str(site)})}
    command = [sys.executable, '-m', 'mim', *map(str, args)]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_mim_trains_and_tests_what_pip_installed(site, shapes_root, tmp_path):
    data = f'data_root={shapes_root}'
    run = ('xcit_mm', DETECTOR, '--gpus')  # by its name: it lies in the package
    train = (*run, 0, '--work-dir', 'run', '--cfg-options', data, 'train_cfg.max_iters=3')
    out = mim(tmp_path, 'train', *train, site=site)
    assert f'{site}/xcit_mm/.mim/tools/train.py' in out
    assert 'Training finished successfully' in out
    losses = (tmp_path / 'run' / 'losses.jsonl').read_text().splitlines()
    assert json.loads(losses[-1])['iter'] == 3

    checkpoint = ('--checkpoint', 'run/iter_3.pth', '--out', 'metrics.json', '--work-dir', 'run')
    test = (*run, 1, '--launcher', 'pytorch', *checkpoint, '--cfg-options', data)
    out = mim(tmp_path, 'test', *test, site=site)
    assert 'torch.distributed.launch' in out
    assert 'coco/bbox_mAP' in json.loads((tmp_path / 'metrics.json').read_text())['metrics']


def test_mim_searches_the_models_and_downloads_a_config(site, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(site)
    from mim.commands.download import download
    from mim.commands.search import get_model_info

    name = 'mask_rcnn_xcit_s12_8_3x'
    largest = get_model_info('xcit_mm', filter_conditions='epochs==36,parameters>99000000')
    assert list(largest.index) == ['mask_rcnn_xcit_m24_16_3x']
    assert len(get_model_info('xcit_mm', training_datasets=['ade20k'])) == 16
    assert get_model_info('xcit_mm', configs=[name], to_dict=True)[name]['epochs'] == 36

    weights = tmp_path / 'maskrcnn_xcit_small_12_p8.pth'
    weights.touch()  # mim does not download what is there
    assert download('xcit_mm', [name], tmp_path) == [weights.name]
    assert 'patch_size=8' in (tmp_path / f'{name}.py').read_text()


def test_mim_finds_an_editable_install_from_the_root_of_the_clone():
    """By `python -m mim`, which looks in the folder that it is started in, as `mim` does not."""
    out = mim(ROOT, 'search', 'xcit_mm', '--valid-config')
    assert 'upernet_xcit_m24_8_160k' in out
