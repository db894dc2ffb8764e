"""The commands that a training ends with."""

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
    images = "'my images'" if validates else 'IMAGES'
    assert next_commands(runner, f'{work_dir}/last.pth') == [
        f'tools/infer.py run/toy.py run/last.pth {images} --out predicted',
        'tools/export.py run/toy.py run/last.pth --out toy.onnx',
    ]
