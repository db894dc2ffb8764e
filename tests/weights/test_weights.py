"""Where a run's first weights come from, and what happens where they cannot be had."""

import pytest
from helpers import ROOT

from xcit_mm import UserError
from xcit_mm.engine.config.load import load_config
from xcit_mm.weights.download import UnreachableError, cache_path
from xcit_mm.weights.pretrained import pretrained_weights

REAL = ROOT / 'configs/mask_rcnn_xcit_s12_8_3x.py'
SHAPES = ROOT / 'configs/sem_fpn_xcit_n12_16_shapes.py'
NOWHERE = 'http://127.0.0.1:9/xcit.pth'  # the port is closed


@pytest.fixture(autouse=True)
def _away(tmp_path, monkeypatch):
    """An empty cache, and no way to the server."""
    monkeypatch.setenv('MMENGINE_HOME', str(tmp_path))
    monkeypatch.setenv('https_proxy', 'http://127.0.0.1:9')


def test_a_training_does_not_start_without_the_weights_of_its_recipe():
    with pytest.raises(UnreachableError, match=r'xcit_small_12_p8_384_dist\.pth cannot be reached'):
        pretrained_weights(load_config(REAL), {})


def test_the_weights_in_the_cache_are_enough():
    cfg = load_config(REAL)
    path = cache_path(cfg.pretrained)
    path.parent.mkdir(parents=True)
    path.touch()
    assert pretrained_weights(cfg, {}) == []
    assert cfg.model.backbone.init_cfg.checkpoint == cfg.pretrained


@pytest.mark.parametrize(('max_iters', 'is_trial'), [(5, True), (500, True), (501, False)])
def test_a_trial_within_the_warm_up_goes_on_from_random_weights(max_iters, is_trial):
    options = {'train_cfg.max_iters': max_iters}
    cfg = load_config(REAL, options)
    if is_trial:
        (note,) = pretrained_weights(cfg, options)
        assert 'cannot be reached' in note
        assert 'starts from random weights' in note
        assert cfg.model.backbone.init_cfg is None
    else:
        with pytest.raises(UnreachableError):
            pretrained_weights(cfg, options)


@pytest.mark.parametrize('option', ['pretrained', 'model.backbone.init_cfg.checkpoint'])
def test_weights_named_by_the_user_are_needed_in_a_trial_too(option):
    options = {'train_cfg.max_iters': 5, option: NOWHERE}
    with pytest.raises(UnreachableError, match=r'127\.0\.0\.1:9'):
        pretrained_weights(load_config(REAL, options), options)


def test_random_weights_are_said():
    (note,) = pretrained_weights(load_config(SHAPES), {})
    assert 'starts from random weights' in note


def test_a_file_is_left_to_the_backbone_if_it_is_there(tmp_path):
    options = {'pretrained': str(tmp_path / 'mine.pth')}
    with pytest.raises(UserError, match=r'mine\.pth does not exist'):
        pretrained_weights(load_config(REAL, options), options)
    (tmp_path / 'mine.pth').touch()
    assert pretrained_weights(load_config(REAL, options), options) == []


def test_a_wrong_address_in_the_config_is_an_error_in_a_trial_too():
    options = {'train_cfg.max_iters': 5}
    cfg = load_config(REAL, options)
    cfg.model.backbone.init_cfg.checkpoint = 'https://'
    with pytest.raises(UserError, match='no web address'):
        pretrained_weights(cfg, options)
