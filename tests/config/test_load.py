"""What the command line and the tools change in a config."""

import sys
from difflib import unified_diff
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.resolved_configs import FILE, RENEW, described

from xcit_mm import UserError
from xcit_mm.base.shipped import CONFIGS
from xcit_mm.config.adapt import adapt, adapt_for_test, adapt_for_training
from xcit_mm.config.load import load_config
from xcit_mm.config.rules import check_backbone

REAL = ROOT / 'configs/mask_rcnn_xcit_s12_8_3x.py'
SHAPES = ROOT / 'configs/sem_fpn_xcit_n12_16_shapes.py'


def test_data_root_moves_datasets_and_evaluators_or_is_refused(tmp_path):
    cfg = load_config(REAL, {'data_root': '/data/coco'})
    for split in ('train', 'val', 'test'):
        assert cfg[f'{split}_dataloader'].dataset.data_root == '/data/coco/'
    for split in ('val', 'test'):
        ann_file = cfg[f'{split}_evaluator'].ann_file
        assert ann_file == '/data/coco/annotations/instances_val2017.json'
    assert cfg.train_dataloader.dataset.ann_file == 'annotations/instances_train2017.json'
    assert cfg.optim_wrapper.optimizer.betas == (0.9, 0.999)
    root = load_config(SHAPES).data_root
    assert load_config(SHAPES, {'data_root': root}).to_dict() == load_config(SHAPES).to_dict()
    cfg = load_config(SHAPES, {'data_root': 'elsewhere/'})
    assert cfg.train_dataloader.dataset.data_root == 'elsewhere/ade/'
    assert cfg.work_dir == 'work_dirs/sem_fpn_xcit_n12_16_shapes'
    own = f"_base_ = '{SHAPES}'\ndata_root = 'data/mine/'"  # and the datasets as they were
    for with_help in ('', "\ndata_help = dict(root='data/mine/', text='{root}')"):  # is no path
        (tmp_path / 'own.py').write_text(own + with_help)
        with pytest.raises(UserError, match=r'no path of .*own\.py starts with its data/mine/'):
            load_config(tmp_path / 'own.py', {'data_root': 'elsewhere'})


def test_pretrained_is_what_the_backbone_starts_from():
    cfg = load_config(REAL, {'pretrained': 'mine.pth'})
    assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint='mine.pth')
    assert load_config(REAL, {'pretrained': None}).model.backbone.init_cfg is None
    cfg = load_config(SHAPES, {'pretrained': 'mine.pth'})  # whose config names none
    assert cfg.model.backbone.init_cfg.checkpoint == 'mine.pth'


@pytest.mark.parametrize(
    ('option', 'message'),
    [
        ('train_dataloder.batch_size', r'did you mean train_dataloader\?'),
        ('num_workers', r'did you mean train_dataloader\.num_workers\?'),
        ('train_cfg.max_epoch', r'did you mean max_epochs\?'),
        ('model.backbone.patchsize', r'did you mean patch_size\?'),
        ('train_dataloader.dataset.pipeline.1.with_mas', r'did you mean with_mask\?'),
        ('model.backbone.drop_path_rat', r'did you mean drop_path_rate\?'),  # of the class alone
        ('train_pipeline', 'would change nothing: .* reads'),  # only the config itself reads these
    ],
)
def test_an_option_that_nothing_reads_is_refused(option, message):
    with pytest.raises(UserError, match=rf'{option}.*{message}'):
        load_config(REAL, {option: 1})


def test_names_that_the_config_does_not_show_may_be_added():
    """But not to a list."""
    names = 'find_unused_parameters', 'compile', 'experiment_name', 'sync_bn'
    options = {'optim_wrapper.dtype': 'bfloat16', 'model.roi_head.bbox_head.conv_out_channels': 8}
    options['custom_hooks'] = []
    cfg = load_config(REAL, {**options, **dict.fromkeys(names, 'value')})
    assert cfg.optim_wrapper.dtype == 'bfloat16'
    assert {cfg[name] for name in names} == {'value'}
    with pytest.raises(UserError, match=r'param_scheduler\.7\.end'):
        load_config(SHAPES, {'param_scheduler.7.end': 3})


def test_a_config_that_does_not_exist_is_refused_with_a_similar_name():
    with pytest.raises(UserError, match=r'nowhere\.py does not exist'):
        load_config('nowhere.py')
    with pytest.raises(UserError, match=r'did you mean mask_rcnn_xcit_s12_8_3x\.py'):
        load_config(REAL.with_name('mask_rcnn_xcit_s12_8.py'))


def test_a_misspelled_part_of_a_config_is_refused(tmp_path):
    config = tmp_path / 'own.py'
    config.write_text(f'_base_ = {str(SHAPES)!r}\ntrain_dataloder = dict(batch_size=1)\n')
    with pytest.raises(UserError, match=r'own\.py has train_dataloder, .* mean train_dataloader'):
        load_config(config)


@pytest.mark.parametrize(
    ('code', 'message'),
    [
        ('model = dict(', r'SyntaxError.*never closed'),
        ("_base_ = 'gone.py'", r'gone\.py'),
        ("_base_ = 'mmpretrain::folder/gone.py'", r'mmpretrain is not installed\..*docs/errors'),
        ("custom_imports = dict(imports=['nothere'])", r'import nothere.*PYTHONPATH'),
        ('value = 1 / 0', r'ZeroDivisionError'),
    ],
)
def test_a_config_that_cannot_be_read_is_refused_with_the_reason(tmp_path, code, message):
    (tmp_path / 'broken.py').write_text(code)
    with pytest.raises(UserError, match=rf'broken\.py cannot be read.*{message}'):
        load_config(tmp_path / 'broken.py')


def test_a_base_in_another_installation_is_named_with_its_place_in_this_one(tmp_path):
    own, old = tmp_path / 'own.py', Path('/old/site-packages/xcit_mm/.mim/configs')
    for name in ('fine_tune_faster_rcnn_xcit_t12_16.py', '_base_/default_runtime.py'):
        own.write_text(f'_base_ = {str(old / name)!r}')
        with pytest.raises(UserError) as error:
            load_config(own)
        assert f'its _base_ {old / name} does not exist' in str(error.value)
        assert str(error.value).endswith(f'has it as {CONFIGS / name}: change the line')


def test_what_is_data_and_no_config_is_refused_with_the_command_that_writes_one(tmp_path):
    data = tmp_path / 'data.yaml'
    data.write_text('train: images/train\nnames:\n  0: apple\n')
    with pytest.raises(UserError, match=rf"in YOLO's .*/prepare_data\.py yolo {data} --root"):
        load_config(data)
    with pytest.raises(UserError, match=r'no config\.json: .*; tools/prepare_data\.py writes a'):
        load_config(tmp_path)


def test_the_missing_package_of_a_custom_import_is_named(tmp_path, monkeypatch):
    (tmp_path / 'in_need.py').write_text('import nothere')
    (tmp_path / 'own.py').write_text("custom_imports = dict(imports=['in_need'])")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"import in_need \(.* No module named 'nothere'\)\. pip"):
        load_config(tmp_path / 'own.py')


def test_a_base_of_another_package_is_found_by_the_name_of_its_module(tmp_path, monkeypatch):
    """The original mmengine looks by pkg_resources, onedl's in a distribution that it lacks."""
    monkeypatch.setitem(sys.modules, 'pkg_resources', None)
    for scope in ('mmdet', 'mmseg'):
        (tmp_path / 'own.py').write_text(f"_base_ = '{scope}::_base_/default_runtime.py'")
        assert load_config(tmp_path / 'own.py').default_scope == scope
    (tmp_path / 'own.py').write_text("_base_ = 'mmpose::_base_/default_runtime.py'")
    with pytest.raises(UserError, match=r'mmpose is not installed'):
        load_config(tmp_path / 'own.py')


# A config of somebody else, with mmdet's names only.
FOREIGN = """
_base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
default_hooks = dict(logger=dict(interval=3))
"""


def test_our_configs_are_as_reviewed_and_name_the_classes_that_run():
    configs = {}
    for path in (ROOT / 'configs').glob('*.py'):
        cfg = load_config(path)
        configs[path.stem] = cfg.to_dict()
        check_backbone(cfg)
        notes = adapt(cfg)
        if cfg.get('stream') is None:
            assert not notes, path
            assert cfg.to_dict() == configs[path.stem]
        else:
            assert len(notes) == 1 and 'images are streamed' in notes[0], (path, notes)
        assert cfg.runner_type == 'CheckedRunner'
    texts = FILE.read_text(), described(configs)
    changes = unified_diff(*(text.splitlines() for text in texts), n=1, lineterm='')
    changes = '\n'.join(changes)
    assert not changes, f'if this is meant, {RENEW} writes it to {FILE}:\n{changes}'


def test_a_config_of_mmdet_gets_our_classes_and_each_edit_is_noted(tmp_path):
    (tmp_path / 'foreign.py').write_text(FOREIGN)
    cfg = load_config(tmp_path / 'foreign.py')
    cfg.test_dataloader.dataset.pipeline[0].color_type = 'unchanged'
    cfg.val_evaluator = [dict(type='CocoMetric'), dict(type='mmseg.IoUMetric')]
    notes = '\n'.join(adapt(cfg))
    assert cfg.train_cfg.type == 'ResumableEpochLoop'
    assert cfg.train_dataloader.dataset.type == 'CheckedCocoDataset'
    assert cfg.train_dataloader.dataset.pipeline[0].type == 'LoadImage'
    assert cfg.test_dataloader.dataset.pipeline[0].type == 'LoadImageFromFile'
    assert cfg.default_hooks.checkpoint.type == 'WholeCheckpointHook'
    assert [m.type for m in cfg.val_evaluator] == ['CocoAPMetric', 'mmseg.IoUMetric']
    assert cfg.default_hooks.logger.interval == 3
    assert cfg.default_hooks.report.type == 'ReportHook'
    assert cfg.runner_type == 'CheckedRunner'
    assert cfg.env_cfg.mp_cfg.mp_start_method == 'forkserver'
    assert cfg.val_dataloader.timeout == 600
    for text in ('CheckedCocoDataset for CocoDataset', 'report', 'max_bad_share', 'fork server'):
        assert text in notes
    assert 'val_dataloader.timeout=600' in notes
    assert not adapt(cfg)  # nothing is left to edit
    cfg.default_scope = 'mmseg'
    (note,) = adapt(cfg)
    assert 'ClassIoUMetric for IoUMetric' in note
    assert [m.type for m in cfg.val_evaluator] == ['CocoAPMetric', 'ClassIoUMetric']


def test_hooks_and_workers_can_be_switched_off(tmp_path):
    own = f"_base_ = '{SHAPES}'\ndefault_hooks = dict(labels=None, logger=None, own=None)"
    (tmp_path / 'own.py').write_text(own)
    cfg = load_config(tmp_path / 'own.py', {'train_cfg.max_iters': 3})
    adapt_for_training(cfg, {'train_cfg.max_iters': 3})
    assert 'labels' not in cfg.default_hooks
    assert cfg.default_hooks.logger is None  # as mmengine wants it
    assert 'own' not in cfg.default_hooks
    assert cfg.default_hooks.losses.type == 'LossLogHook'

    cfg = load_config(SHAPES, {'train_dataloader.num_workers': 0})
    (note,) = adapt(cfg)
    assert 'train_dataloader has no workers: persistent_workers, timeout' in note
    assert not {'persistent_workers', 'timeout'} & cfg.train_dataloader.keys()


def test_max_iters_ends_an_epoch_recipe_early_and_leaves_the_rest_of_it():
    options = {'train_cfg.max_iters': 20}
    cfg = load_config(REAL, options)
    notes = adapt_for_training(cfg, options)
    assert cfg.train_cfg == dict(type='ResumableIterLoop', max_iters=20, val_interval=20)
    assert cfg.default_hooks.checkpoint.interval == 20
    assert not cfg.default_hooks.checkpoint.by_epoch
    assert cfg.default_hooks.logger.interval <= 2
    assert cfg.param_scheduler == load_config(REAL).param_scheduler
    assert any('a trial of 20 iterations, not the 36 epochs' in note for note in notes)
    assert 'It learns little: the warm-up takes 500 iterations.' in notes
    for warm_up in (dict(by_epoch=False, end=20), dict(by_epoch=True, end=500)):
        cfg = load_config(REAL, options)
        cfg.param_scheduler = dict(type='LinearLR', start_factor=0.1, **warm_up)
        assert not any('warm-up' in note for note in adapt_for_training(cfg, options))

    options |= {'default_hooks.checkpoint.interval': 10, 'default_hooks.logger.interval': 7}
    options |= {'train_cfg.val_interval': 5}
    cfg = load_config(REAL, options)
    adapt_for_training(cfg, options)
    assert cfg.train_cfg.val_interval == 5
    assert cfg.default_hooks.checkpoint.interval == 10
    assert cfg.default_hooks.logger.interval == 7


def test_max_iters_of_an_iteration_recipe_only_replaces_the_number():
    options = {'train_cfg.max_iters': 7}
    cfg, recipe = load_config(SHAPES, options), load_config(SHAPES)
    adapt_for_training(cfg, options)
    assert cfg.train_cfg == {**recipe.train_cfg, 'max_iters': 7}
    assert cfg.default_hooks.checkpoint == recipe.default_hooks.checkpoint
    assert cfg.default_hooks.logger.interval == 1  # or so short a run would log no loss


@pytest.mark.parametrize(
    ('device', 'multiplies_bfloat16', 'wrapper', 'note'),
    [
        ('cpu', False, 'OptimWrapper', 'training in float32 on the cpu'),
        ('cpu', True, 'CPUAmpOptimWrapper', 'training in bfloat16 on the CPU'),
        ('mps', True, 'OptimWrapper', 'training in float32 on the mps'),
        ('cuda', False, 'AmpOptimWrapper', None),
    ],
)
def test_mixed_precision_is_that_of_the_device(
    monkeypatch, device, multiplies_bfloat16, wrapper, note
):
    adapt = 'xcit_mm.config.adapt'
    monkeypatch.setattr(f'{adapt}.get_device', lambda: device)
    monkeypatch.setattr(f'{adapt}.multiplies_bfloat16', lambda: multiplies_bfloat16)
    cfg = load_config(REAL)
    notes = adapt_for_training(cfg)
    assert cfg.optim_wrapper.type == wrapper
    assert ('loss_scale' in cfg.optim_wrapper) == (device == 'cuda')
    assert note is None or any(note in line for line in notes)
    cfg = load_config(REAL, {'optim_wrapper.type': 'OptimWrapper'})  # switches it off
    adapt_for_training(cfg)
    assert cfg.optim_wrapper.type == 'OptimWrapper'


def test_the_weights_of_a_run_come_from_one_source(monkeypatch):
    cfg = load_config(REAL, {'load_from': 'other.pth'})
    notes = adapt_for_training(cfg, resume=True)
    assert (cfg.resume, cfg.load_from, cfg.model.backbone.init_cfg) == (True, None, None)
    assert any('init_cfg' in note for note in notes)
    adapt_for_training(cfg, resume='last.pth')
    assert (cfg.resume, cfg.load_from) == (True, 'last.pth')

    options = {'pretrained': 'a.pth', 'load_from': 'b.pth'}
    with pytest.raises(UserError, match=r'pretrained=a\.pth and load_from=b\.pth both hold'):
        adapt_for_training(load_config(REAL, options), options)

    for name in ('was_restarted', 'has_checkpoints'):
        monkeypatch.setattr(f'xcit_mm.config.adapt.{name}', lambda *_: True)
    adapt_for_training(cfg, resume='last.pth')
    assert (cfg.resume, cfg.load_from) == (True, None)  # the newest


def test_a_test_loads_the_checkpoint_and_draws_into_the_folder():
    cfg = load_config(SHAPES)
    folders = dict(show_dir='shown', errors_dir='counted')
    notes = adapt_for_test(cfg, 'a.pth', **folders, trust_checkpoint=True)
    assert cfg.load_from == 'a.pth'
    assert cfg.default_hooks.pictures.test_dir == 'shown'
    assert cfg.default_hooks.errors.test_dir == 'counted'
    assert cfg.trust_checkpoint
    assert any('code that they hold is run' in note for note in notes)


def test_the_length_of_a_run_changes_with_its_schedule_and_intervals(tmp_path):
    cfg = load_config('configs/fine_tune_faster_rcnn_xcit_t12_16.py', {'max_iters': 800})
    assert (cfg.train_cfg.max_iters, cfg.train_cfg.val_interval, cfg.max_iters) == (800, 80, 800)
    assert cfg.default_hooks.checkpoint.interval == 80
    assert [scheduler.end for scheduler in cfg.param_scheduler] == [40, 800]
    config = tmp_path / 'own.py'
    config.write_text("train_cfg = dict(type='IterBasedTrainLoop', max_iters=10, val_interval=5)\n")
    assert load_config(config, {'max_iters': 20}).train_cfg.val_interval == 10
    with pytest.raises(UserError, match=r'--cfg-options max_iters: .* counts epochs'):
        load_config('configs/mask_rcnn_xcit_t12_16_3x.py', {'max_iters': 800})
    with pytest.raises(UserError, match='max_iters=0 must be an integer above 0'):
        load_config(config, {'max_iters': 0})


def test_the_scale_of_images_is_replaced_but_not_an_equal_crop(tmp_path):
    config = tmp_path / 'own.py'
    config.write_text(
        'scale = (160, 160)\n'
        "pipeline = [dict(type='Resize', scale=scale), dict(type='RandomCrop', crop_size=scale)]\n"
        "train_dataloader = dict(dataset=dict(type='Own', pipeline=pipeline))\n"
    )
    for option, expected in ((320, (320, 320)), ([640, 320], (640, 320))):
        resize, crop = load_config(config, {'scale': option}).train_dataloader.dataset.pipeline
        assert (resize.scale, crop.crop_size) == (expected, (160, 160))
    with pytest.raises(UserError, match=r"scale='large' must be one or two integers above 0"):
        load_config(config, {'scale': 'large'})
