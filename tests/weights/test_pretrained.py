"""The weights that a run starts from, and the errors if they cannot be had."""

import pytest
import torch
from helpers import ROOT
from mmengine.runner import CheckpointLoader

from xcit_mm import UserError
from xcit_mm.engine.config.load import load_config
from xcit_mm.http import UnreachableError
from xcit_mm.weights.download import cache_path
from xcit_mm.weights.pretrained import pretrained_weights, read_all_safely

REAL = ROOT / 'configs/mask_rcnn_xcit_s12_8_3x.py'
SHAPES = ROOT / 'configs/sem_fpn_xcit_n12_16_shapes.py'


@pytest.fixture(autouse=True)
def _offline(tmp_path, monkeypatch):
    """An empty cache, and a closed port instead of the server."""
    monkeypatch.setenv('MMENGINE_HOME', str(tmp_path))
    monkeypatch.setenv('https_proxy', 'http://127.0.0.1:9')


def test_no_training_starts_at_random_by_itself():
    message = r'384_dist\.pth cannot be reached .*--cfg-options pretrained=FILE'
    with pytest.raises(UnreachableError, match=message):
        pretrained_weights(load_config(REAL, {'train_cfg.max_iters': 5}))
    for cfg in (load_config(SHAPES), load_config(REAL, {'pretrained': None})):
        (note,) = pretrained_weights(cfg)
        assert 'starts from random weights' in note


def test_the_weights_in_the_cache_are_enough_and_the_config_is_not_changed():
    cfg = load_config(REAL)
    before = cfg.to_dict()
    path = cache_path(cfg.pretrained)
    path.parent.mkdir(parents=True)
    path.touch()
    assert pretrained_weights(cfg) == []
    assert cfg.to_dict() == before


def test_a_file_must_exist(tmp_path):
    cfg = load_config(REAL, {'pretrained': str(tmp_path / 'mine.pth')})
    with pytest.raises(UserError, match=r'mine\.pth does not exist'):
        pretrained_weights(cfg)
    (tmp_path / 'mine.pth').touch()
    assert pretrained_weights(cfg) == []


def test_mmengine_reads_safely_within_the_block_only(tmp_path):
    torch.save({'a': torch.nn.Identity()}, tmp_path / 'code.pth')
    before = dict(CheckpointLoader._schemes)
    with read_all_safely(trusted=True):
        CheckpointLoader.load_checkpoint(str(tmp_path / 'code.pth'))
    with read_all_safely(trusted=False), pytest.raises(UserError, match='more than weights'):
        CheckpointLoader.load_checkpoint(str(tmp_path / 'code.pth'))
    assert dict(CheckpointLoader._schemes) == before
