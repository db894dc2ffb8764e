"""Errors of other packages about a part of a config, which name the part."""

import re
from urllib.error import URLError

import pytest
from helpers import ROOT
from helpers.in_process import call_tool
from mmengine.config import Config
from mmengine.registry import MODELS

from tools import cli
from xcit_mm import UserError
from xcit_mm.base.errors import ConfigError
from xcit_mm.config.build_model import build_model, config_errors
from xcit_mm.config.load import load_config

DETECTOR = ROOT / 'configs/mask_rcnn_xcit_n12_16_shapes.py'
PIPELINE = 'train_dataloader.dataset.pipeline'


@pytest.mark.parametrize(
    ('option', 'message'),
    [
        (
            f'{PIPELINE}.2.type=RandomFlipp',
            rf"{PIPELINE}\.2 has type='RandomFlipp', .*RandomFlip\?",
        ),
        ('default_hooks.logger.interval=-1.5', r'default_hooks\.logger: '),
    ],
)
def test_a_wrong_value_ends_with_a_sentence_that_names_its_place(
    monkeypatch, capfd, shapes_root, tmp_path, option, message
):
    # mmengine shares the log between runs of one name and second.
    options = f'data_root={shapes_root}', f'experiment_name={tmp_path.name}', option
    arguments = '--work-dir', tmp_path / 'run', '--cfg-options', *options
    code, _, error = call_tool(monkeypatch, capfd, 'train.py', DETECTOR, *arguments)
    sentence = error.splitlines()[-1]
    assert code == 2
    assert re.search(message, sentence), sentence
    # The error of another package keeps its traceback.
    assert ('Traceback' in error) == ('Error: ' in sentence)


def test_a_part_of_a_model_that_cannot_be_built_is_named():
    with pytest.raises(ConfigError, match=r'model\.neck: AssertionError') as error:
        build_model(load_config(DETECTOR, {'model.neck.num_outs': 2}), 'meta')
    assert error.value.__cause__ is not None


def test_a_neck_with_other_channels_is_named_by_all_tools():
    with pytest.raises(UserError, match=r'model\.neck\.in_channels=.*; write in_channels=\[128'):
        build_model(load_config(DETECTOR, {'model.neck.in_channels': [256] * 4}), 'meta')


def test_a_download_of_another_package_that_fails_is_a_sentence(capfd):
    def fail():
        raise URLError('no route')

    with pytest.raises(SystemExit, match='2'):
        cli.run_tool(fail)
    assert 'that the config names cannot be reached (URLError: <urlopen' in capfd.readouterr().err


@pytest.mark.parametrize(
    ('part', 'message'),
    [
        (dict(type='XCiTT'), r"config own.py: model has type='XCiTT', .*; did you mean XCiT\?"),
        (dict(type='Nowhere'), 'which no package registers: check custom_imports'),
        (dict(type='XCiT', patchsize=8), r'config own.py: model: TypeError: .*mean patch_size\?$'),
        (dict(type='XCiT', depth=50), r'argument .depth.; if the base .* with _delete_=True$'),
    ],
)
def test_the_place_of_a_part_is_in_front_of_the_error(part, message):
    cfg = Config(dict(model=part), cfg_text='read already', filename='own.py')
    with pytest.raises(UserError, match=message), config_errors(cfg):
        MODELS.build(cfg.model)


def test_errors_outside_of_a_part_pass_unchanged():
    with pytest.raises(ValueError, match='planted'), config_errors(Config()):
        raise ValueError('planted')
