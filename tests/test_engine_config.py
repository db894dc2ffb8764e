"""What the command line and the machine change in a config."""

import pytest
from conftest import ROOT

from xcit_mm import UserError
from xcit_mm.engine.config import limit_iterations, load_config, without_amp

REAL = ROOT / 'configs/mask_rcnn_xcit_s12_8_3x.py'
SHAPES = ROOT / 'configs/sem_fpn_xcit_n12_16_shapes.py'


def test_data_root_moves_datasets_and_evaluators():
    cfg = load_config(REAL, {'data_root': '/data/coco'})
    for split in ('train', 'val', 'test'):
        assert cfg[f'{split}_dataloader'].dataset.data_root == '/data/coco/'
    for split in ('val', 'test'):
        ann_file = cfg[f'{split}_evaluator'].ann_file
        assert ann_file == '/data/coco/annotations/instances_val2017.json'
    assert cfg.train_dataloader.dataset.ann_file == 'annotations/instances_train2017.json'
    assert cfg.optim_wrapper.optimizer.betas == (0.9, 0.999)


def test_data_root_moves_what_lies_below_it():
    cfg = load_config(SHAPES, {'data_root': 'elsewhere/'})
    assert cfg.train_dataloader.dataset.data_root == 'elsewhere/ade/'


def test_max_iters_ends_an_epoch_recipe_early_and_leaves_it_as_it_is():
    recipe = load_config(REAL)
    cfg = load_config(REAL, {'train_cfg.max_iters': 20})
    notes = limit_iterations(cfg)
    assert cfg.train_cfg == dict(type='IterBasedTrainLoop', max_iters=20, val_interval=20)
    assert cfg.default_hooks.checkpoint.interval == 20
    assert not cfg.default_hooks.checkpoint.by_epoch
    assert cfg.default_hooks.logger.interval <= 2
    assert cfg.param_scheduler == recipe.param_scheduler
    assert any('20 iterations instead of the 36 epochs' in note for note in notes)


def test_max_iters_of_an_iteration_recipe_is_just_replaced():
    cfg = load_config(SHAPES, {'train_cfg.max_iters': 7})
    recipe = load_config(SHAPES)
    assert not limit_iterations(cfg)
    assert cfg.train_cfg == {**recipe.train_cfg, 'max_iters': 7}


def test_without_a_gpu_training_is_in_float32_and_said(monkeypatch):
    monkeypatch.setattr('xcit_mm.engine.config.get_device', lambda: 'cpu')
    cfg = load_config(REAL)
    notes = without_amp(cfg)
    assert cfg.optim_wrapper.type == 'OptimWrapper'
    assert 'loss_scale' not in cfg.optim_wrapper
    assert any('float32 on the cpu' in note for note in notes)


def test_with_a_gpu_mixed_precision_stays(monkeypatch):
    monkeypatch.setattr('xcit_mm.engine.config.get_device', lambda: 'cuda')
    cfg = load_config(REAL)
    notes = without_amp(cfg)
    assert cfg.optim_wrapper.type == 'AmpOptimWrapper'
    assert not notes


def test_work_dir_is_named_after_the_config():
    assert load_config(SHAPES).work_dir == 'work_dirs/sem_fpn_xcit_n12_16_shapes'
    assert load_config(SHAPES, work_dir='here').work_dir == 'here'


@pytest.mark.parametrize(
    ('option', 'right'),
    [
        ('train_dataloder.batch_size', 'train_dataloader'),
        ('train_cfg.max_epoch', 'max_epochs'),
        ('model.backbone.patchsize', 'patch_size'),
        ('auto_scale_lr.enabled', 'enable'),
    ],
)
def test_a_misspelt_option_is_refused_with_the_right_name(option, right):
    with pytest.raises(UserError, match=rf'{option}.*did you mean {right}\?'):
        load_config(REAL, {option: 1})


def test_a_config_that_does_not_exist_is_named():
    with pytest.raises(UserError, match=r'nowhere\.py does not exist'):
        load_config('nowhere.py')
    with pytest.raises(UserError, match=r'did you mean mask_rcnn_xcit_s12_8_3x\.py'):
        load_config(REAL.with_name('mask_rcnn_xcit_s12_8.py'))


def test_options_reach_nested_values():
    cfg = load_config(SHAPES, {'model.backbone.drop_path_rate': 0.3})
    assert cfg.model.backbone.drop_path_rate == 0.3


@pytest.mark.parametrize(
    'option', ['find_unused_parameters', 'custom_hooks', 'compile', 'experiment_name']
)
def test_what_the_runner_reads_may_be_added(option):
    assert load_config(SHAPES, {option: 'value'})[option] == 'value'


def test_an_option_that_fits_nowhere_is_refused():
    with pytest.raises(UserError, match=r'param_scheduler\.7\.end'):
        load_config(SHAPES, {'param_scheduler.7.end': 3})
