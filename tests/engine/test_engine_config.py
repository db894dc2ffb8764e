"""What the command line and the machine change in a config."""

from argparse import ArgumentParser

import pytest
from helpers import ROOT

from xcit_mm import UserError, cli, environment
from xcit_mm.engine import train as run
from xcit_mm.engine.config.load import (
    check_batch_size,
    check_channels,
    limit_iterations,
    load_config,
    require_parts,
    without_amp,
)

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


def test_a_data_root_that_moves_nothing_is_refused(tmp_path):
    own = f"_base_ = '{SHAPES}'\ndata_root = 'data/mine/'"  # and the datasets as they were
    (tmp_path / 'own.py').write_text(own)
    with pytest.raises(UserError, match=r'no path of .*own\.py begins with its data/mine/'):
        load_config(tmp_path / 'own.py', {'data_root': 'elsewhere'})


def test_max_iters_ends_an_epoch_recipe_early_and_leaves_it_as_it_is():
    recipe = load_config(REAL)
    cfg = load_config(REAL, {'train_cfg.max_iters': 20})
    notes = limit_iterations(cfg, {'train_cfg.max_iters': 20})
    assert cfg.train_cfg == dict(type='IterBasedTrainLoop', max_iters=20, val_interval=20)
    assert cfg.default_hooks.checkpoint.interval == 20
    assert not cfg.default_hooks.checkpoint.by_epoch
    assert cfg.default_hooks.logger.interval <= 2
    assert cfg.param_scheduler == recipe.param_scheduler
    assert any('20 iterations instead of the 36 epochs' in note for note in notes)


def test_max_iters_leaves_what_the_command_line_sets():
    options = {
        'train_cfg.max_iters': 20,
        'train_cfg.val_interval': 5,
        'default_hooks.checkpoint.interval': 10,
        'default_hooks.logger.interval': 7,
    }
    cfg = load_config(REAL, options)
    limit_iterations(cfg, options)
    assert cfg.train_cfg.val_interval == 5
    assert cfg.default_hooks.checkpoint.interval == 10
    assert cfg.default_hooks.logger.interval == 7


@pytest.mark.parametrize('value', ['abc', 0, 1.5])
def test_max_iters_that_is_no_count_is_refused(value):
    with pytest.raises(UserError, match=rf'max_iters={value!r} is not a positive integer'):
        limit_iterations(load_config(REAL, {'train_cfg.max_iters': value}))


def test_max_iters_of_an_iteration_recipe_is_just_replaced():
    options = {'train_cfg.max_iters': 7}
    cfg = load_config(SHAPES, options)
    recipe = load_config(SHAPES)
    assert not limit_iterations(cfg, options)
    assert cfg.train_cfg == {**recipe.train_cfg, 'max_iters': 7}
    assert cfg.default_hooks.checkpoint == recipe.default_hooks.checkpoint
    assert cfg.default_hooks.logger.interval == 1  # or so short a run would log no loss


def test_a_recipe_that_is_not_limited_stays_as_it_is():
    cfg = load_config(SHAPES)
    assert not limit_iterations(cfg)
    assert cfg.to_dict() == load_config(SHAPES).to_dict()


def test_without_a_gpu_training_is_in_float32_and_said(monkeypatch):
    monkeypatch.setattr('xcit_mm.engine.config.load.get_device', lambda: 'cpu')
    cfg = load_config(REAL)
    notes = without_amp(cfg)
    assert cfg.optim_wrapper.type == 'OptimWrapper'
    assert 'loss_scale' not in cfg.optim_wrapper
    assert any('float32 on the cpu' in note for note in notes)


def test_with_a_gpu_mixed_precision_stays(monkeypatch):
    monkeypatch.setattr('xcit_mm.engine.config.load.get_device', lambda: 'cuda')
    cfg = load_config(REAL)
    notes = without_amp(cfg)
    assert cfg.optim_wrapper.type == 'AmpOptimWrapper'
    assert not notes


def test_work_dir_is_named_after_the_config():
    assert load_config(SHAPES).work_dir == 'work_dirs/sem_fpn_xcit_n12_16_shapes'
    assert load_config(SHAPES, work_dir='here').work_dir == 'here'


def test_pretrained_is_what_the_backbone_starts_from():
    cfg = load_config(REAL, {'pretrained': 'mine.pth'})
    assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint='mine.pth')
    assert load_config(REAL, {'pretrained': None}).model.backbone.init_cfg is None
    cfg = load_config(SHAPES, {'pretrained': 'mine.pth'})  # whose config names none
    assert cfg.model.backbone.init_cfg.checkpoint == 'mine.pth'


def test_one_image_for_the_batchnorm_of_one_pixel_is_refused():
    path = ROOT / 'configs/upernet_xcit_t12_16_160k.py'
    check_batch_size(load_config(path))
    with pytest.raises(UserError, match=r'batch_size=1: the BatchNorm of UPerHead .*needs 2 ima'):
        check_batch_size(load_config(path, {'train_dataloader.batch_size': 1}))
    check_batch_size(load_config(REAL, {'train_dataloader.batch_size': 1}))
    without_batch = {'train_dataloader.batch_size': 1, 'model.decode_head.norm_cfg.type': 'GN'}
    check_batch_size(load_config(path, without_batch))


@pytest.mark.parametrize(
    ('norm', 'sync_bn', 'synchronised'),
    [('BN', 'torch', True), ('SyncBN', None, True), ('BN', None, False)],
)
def test_one_image_for_each_gpu_is_enough_where_batchnorm_is_synchronised(
    monkeypatch, norm, sync_bn, synchronised
):
    monkeypatch.setattr('torch.cuda.is_available', lambda: True)
    options = {'train_dataloader.batch_size': 1, 'model.decode_head.norm_cfg.type': norm}
    path = ROOT / 'configs/upernet_xcit_t12_16_160k.py'
    cfg = load_config(path, options | {'sync_bn': sync_bn}, launcher='pytorch')
    if synchronised:
        check_batch_size(cfg)
    else:
        with pytest.raises(UserError, match='needs 2 images'):
            check_batch_size(cfg)


def test_a_hook_of_ours_can_be_switched_off(tmp_path):
    own = f"_base_ = '{SHAPES}'\ndefault_hooks = dict(labels=None)"
    (tmp_path / 'own.py').write_text(own)
    hooks = load_config(tmp_path / 'own.py').default_hooks
    assert 'labels' not in hooks
    assert hooks.buffers.type == 'BufferSyncHook'


@pytest.mark.parametrize(
    ('option', 'right'),
    [
        ('train_dataloder.batch_size', 'train_dataloader'),
        ('train_cfg.max_epoch', 'max_epochs'),
        ('train_cfg.max_iter', 'max_iters'),
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
    'option',
    [
        'find_unused_parameters',
        'custom_hooks',
        'compile',
        'experiment_name',
        'model_wrapper_cfg',
        'sync_bn',
    ],
)
def test_what_the_runner_reads_may_be_added(option):
    assert load_config(SHAPES, {option: 'value'})[option] == 'value'


def test_an_argument_that_the_config_does_not_show_may_be_added():
    assert load_config(REAL, {'optim_wrapper.dtype': 'bfloat16'}).optim_wrapper.dtype == 'bfloat16'


def test_an_option_that_fits_nowhere_is_refused():
    with pytest.raises(UserError, match=r'param_scheduler\.7\.end'):
        load_config(SHAPES, {'param_scheduler.7.end': 3})


@pytest.mark.parametrize(
    ('code', 'message'),
    [
        ('model = dict(', r'SyntaxError.*never closed'),
        ("_base_ = 'gone.py'", r'gone\.py'),
        ("_base_ = 'nothere::folder/gone.py'", r'not support to load nothere'),
        ("_base_ = 'mmpretrain::folder/gone.py'", r'mmpretrain is not installed.*pip install mmp'),
        ("custom_imports = dict(imports=['nothere'])", r'import nothere.*PYTHONPATH'),
        ('value = 1 / 0', r'ZeroDivisionError'),
    ],
)
def test_a_config_that_cannot_be_read_is_named_with_the_reason(tmp_path, code, message):
    (tmp_path / 'broken.py').write_text(code)
    with pytest.raises(UserError, match=rf'broken\.py cannot be read.*{message}'):
        load_config(tmp_path / 'broken.py')


def test_a_base_of_mmseg_works_or_says_what_to_take(tmp_path):
    """onedl-mmengine looks for it under a distribution name that onedl does not have."""
    (tmp_path / 'own.py').write_text("_base_ = 'mmseg::_base_/default_runtime.py'")
    if environment.installed('mmsegmentation'):
        assert load_config(tmp_path / 'own.py').default_scope == 'mmseg'
    else:
        with pytest.raises(UserError, match=r'mmseg:: bases: take those in configs/_base_'):
            load_config(tmp_path / 'own.py')


def test_a_part_of_a_config_is_refused_with_what_is_missing():
    cfg = load_config(ROOT / 'configs/_base_/mask_rcnn_xcit.py')
    with pytest.raises(UserError, match=r'mask_rcnn_xcit\.py has no train_dataloader'):
        require_parts(cfg, 'train')


@pytest.mark.parametrize(
    ('name', 'option', 'says'),
    [
        (
            'mask_rcnn_xcit_t12_16_3x',
            'neck',
            r'neck.in_channels=\[384, 384, 384, 384\]: .* in_channels=\[192, 192',
        ),
        ('upernet_xcit_t12_16_160k', 'auxiliary_head', r'head.in_channels=384: .* in_channels=192'),
    ],
)
def test_channels_that_the_backbone_does_not_have_are_refused(name, option, says):
    cfg = load_config(ROOT / f'configs/{name}.py')
    check_channels(cfg)
    part = cfg.model[option]
    if isinstance(part.in_channels, list):
        part.in_channels = tuple(part.in_channels)
        check_channels(cfg)
    part.in_channels = [384] * 4 if isinstance(part.in_channels, tuple) else 384
    with pytest.raises(UserError, match=says):
        check_channels(cfg)


def test_every_config_has_the_channels_of_its_backbone():
    for path in (ROOT / 'configs').glob('*.py'):
        check_channels(load_config(path))


def test_a_config_of_others_gets_our_pictures_and_report(tmp_path):
    (tmp_path / 'own.py').write_text('default_hooks = dict(logger=dict(interval=3))')
    hooks = load_config(tmp_path / 'own.py').default_hooks
    assert (hooks.pictures.type, hooks.report.type) == ('PictureHook', 'ReportHook')
    assert hooks.logger == dict(interval=3)


@pytest.mark.parametrize(
    ('text', 'value'),
    [
        ('/x/with space', '/x/with space'),
        ("/x/New York,  NY (2)/it's here", ['/x/New York', "NY (2)/it's here"]),
        ('/x/two  spaces (2)', '/x/two  spaces (2)'),
        ('[8, 11]', [8, 11]),
        ('( 8, (1 , a b), [ ] )', (8, (1, 'a b'), [])),
        ('1e-3', 1e-3),
        ('None', None),
    ],
)
def test_an_option_keeps_the_spaces_of_its_text(text, value):
    parser = ArgumentParser()
    cli.add_options_argument(parser)
    args = parser.parse_args(['--cfg-options', f'name={text}', 'other=1'])
    assert args.cfg_options == {'name': value, 'other': 1}


@pytest.mark.parametrize(
    ('count', 'restarted'), [('', False), ('0', False), ('abc', False), ('1.5', False), ('2', True)]
)
def test_a_restart_count_that_is_odd_is_no_restart(monkeypatch, count, restarted):
    monkeypatch.delenv('SLURM_RESTART_COUNT', raising=False)
    monkeypatch.setenv('TORCHELASTIC_RESTART_COUNT', count)
    assert run._was_restarted() is restarted
