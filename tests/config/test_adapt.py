"""The edits that tools make to a config."""

from difflib import unified_diff

import pytest
from helpers import ROOT
from helpers.resolved_configs import FILE, RENEW, described
from mmengine.registry import DATASETS, METRICS, DefaultScope

from xcit_mm import UserError
from xcit_mm.config.adapt import adapt, adapt_for_test, adapt_for_training
from xcit_mm.config.channel_rules import check_map_channels
from xcit_mm.config.load import load_config
from xcit_mm.environment import require_framework
from xcit_mm.launchers import was_restarted

REAL = ROOT / 'configs/mask_rcnn_xcit_s12_8_3x.py'
SHAPES = ROOT / 'configs/sem_fpn_xcit_n12_16_shapes.py'
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
        check_map_channels(cfg)
        assert not adapt(cfg), path
        assert cfg.to_dict() == configs[path.stem]
        assert cfg.runner_type == 'CheckedRunner'
    texts = FILE.read_text(), described(configs)
    changes = unified_diff(*(text.splitlines() for text in texts), n=1, lineterm='')
    changes = '\n'.join(changes)
    assert not changes, f'if this is meant, {RENEW} writes it to {FILE}:\n{changes}'


def test_a_config_of_mmdet_gets_our_classes_and_each_edit_is_noted(tmp_path):
    (tmp_path / 'foreign.py').write_text(FOREIGN)
    cfg = load_config(tmp_path / 'foreign.py')
    cfg.test_dataloader.dataset.pipeline[0].color_type = 'unchanged'
    notes = '\n'.join(adapt(cfg))
    assert cfg.train_cfg.type == 'ResumableEpochLoop'
    assert cfg.train_dataloader.dataset.type == 'CheckedCocoDataset'
    assert cfg.train_dataloader.dataset.pipeline[0].type == 'LoadImage'
    assert cfg.test_dataloader.dataset.pipeline[0].type == 'LoadImageFromFile'
    assert cfg.default_hooks.checkpoint.type == 'WholeCheckpointHook'
    assert cfg.default_hooks.logger.interval == 3
    assert cfg.default_hooks.report.type == 'ReportHook'
    assert cfg.runner_type == 'CheckedRunner'
    assert cfg.env_cfg.mp_cfg.mp_start_method == 'forkserver'
    assert cfg.val_dataloader.timeout == 600
    for text in ('CheckedCocoDataset for CocoDataset', 'report', 'max_bad_share', 'fork server'):
        assert text in notes
    assert 'val_dataloader.timeout=600' in notes
    assert not adapt(cfg)  # nothing is left to edit


def test_a_panoptic_config_of_mmdet_needs_no_panopticapi(tmp_path):
    base = 'mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py'
    (tmp_path / 'foreign.py').write_text(f"_base_ = '{base}'")
    cfg = load_config(tmp_path / 'foreign.py')
    adapt(cfg)
    require_framework('mmdet')
    with DefaultScope.overwrite_default_scope('mmdet'):
        for loader in (cfg.train_dataloader, cfg.val_dataloader):
            dataset = DATASETS.build({**loader.dataset, 'lazy_init': True})
            assert type(dataset).__name__ == 'CheckedPanopticDataset'
            assert 'LoadPanoptic' in {type(t).__name__ for t in dataset.pipeline.transforms}
        with pytest.raises(UserError, match=r'panoptic_val2017\.json is not a panoptic COCO'):
            METRICS.build(cfg.val_evaluator[0])


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


def test_the_weights_of_a_run_come_from_one_source():
    cfg = load_config(REAL, {'load_from': 'other.pth'})
    notes = adapt_for_training(cfg, resume=True)
    assert (cfg.resume, cfg.load_from, cfg.model.backbone.init_cfg) == (True, None, None)
    assert any('init_cfg' in note for note in notes)

    options = {'pretrained': 'a.pth', 'load_from': 'b.pth'}
    with pytest.raises(UserError, match=r'pretrained=a\.pth and load_from=b\.pth both hold'):
        adapt_for_training(load_config(REAL, options), options)


def test_a_test_loads_the_checkpoint_and_draws_into_the_folder():
    cfg = load_config(SHAPES)
    notes = adapt_for_test(cfg, 'a.pth', show_dir='shown', trust_checkpoint=True)
    assert cfg.load_from == 'a.pth'
    assert cfg.default_hooks.pictures.test_dir == 'shown'
    assert cfg.trust_checkpoint
    assert any('code that they hold is run' in note for note in notes)


def test_an_invalid_restart_count_is_not_a_restart(monkeypatch):
    monkeypatch.delenv('SLURM_RESTART_COUNT', raising=False)
    for count, restarted in {'': False, '0': False, 'abc': False, '1.5': False, '2': True}.items():
        monkeypatch.setenv('TORCHELASTIC_RESTART_COUNT', count)
        assert was_restarted() is restarted
