"""The commands that a training ends with."""

from types import SimpleNamespace

import pytest
from helpers.evaluated_runs import evaluated_run
from helpers.toy import ToyDataset, toy_runner

from xcit_mm.train.hooks.next_commands import next_commands


@pytest.mark.parametrize('validates', [False, True])
def test_commands_name_the_folder_of_images_if_it_is_known(tmp_path, monkeypatch, validates):
    folder = tmp_path / 'my images'
    folder.mkdir()
    monkeypatch.setattr(ToyDataset, 'data_prefix', dict(img=str(folder)), raising=False)
    monkeypatch.chdir(tmp_path)
    work_dir = tmp_path / 'run'
    runner = (evaluated_run if validates else toy_runner)(work_dir, steps=2)
    runner.train()
    assert next_commands(runner, f'{work_dir}/last.pth') == []  # of neither mmdet nor mmseg
    runner.cfg.default_scope = 'mmdet'
    vars(runner.cfg)['_filename'] = 'toy.py'
    (work_dir / 'toy.py').touch()
    last = f'{work_dir}/last.pth'
    other = SimpleNamespace(data_prefix=dict(img=str(tmp_path)))
    samples = vars(runner.train_dataloader.dataset)  # which sets attributes of what it wraps
    joined = SimpleNamespace(datasets=[other, samples['dataset']])
    for trained_on in (samples['dataset'], joined):  # the images of the validation, too
        samples['dataset'] = trained_on
        assert 'last.pth IMAGES --out' in next_commands(runner, last)[0]
    samples['dataset'] = other
    images = "'my images'" if validates else 'IMAGES'
    assert next_commands(runner, last) == [
        f'tools/infer.py run/toy.py run/last.pth {images} --out predicted',
        'tools/export.py run/toy.py run/last.pth --out toy.onnx',
    ]
